//! What stands between the header of a sealed WAL object and its chunks: the sealed data key, and the WAL object's header,
//! sealed once more. Each part has its length in front.

/// The preface with these parts.
pub(super) fn join(sealed_key: &[u8], sealed_header: &[u8]) -> Vec<u8> {
    let mut preface = Vec::new();
    for part in [sealed_key, sealed_header] {
        let length = u32::try_from(part.len()).expect("keys are short");
        preface.extend_from_slice(&length.to_le_bytes());
        preface.extend_from_slice(part);
    }
    preface
}

/// Its parts, in their order.
pub(super) fn split(preface: &[u8]) -> Option<(&[u8], &[u8])> {
    let (sealed_key, rest) = split_part(preface)?;
    let (sealed_header, rest) = split_part(rest)?;
    rest.is_empty().then_some((sealed_key, sealed_header))
}

fn split_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}
