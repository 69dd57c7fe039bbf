//! Text objects: a line with a digest, and JSON.

use pgstrata_layer::digest::contents_hex;
use pgstrata_layer::seal::Key;
use pgstrata_layer::{
    abandoned, claim, cluster, distrust, epoch, label, lineage, manifest, mark, outside, released,
    removal, restoring, sealed, verified,
};

use super::Target;

/// The kinds of records, with whether one decodes and is the same when it is written and read again.
const KINDS: [(&str, Target); 15] = [
    ("manifest", |bytes| {
        if let Ok(read) = manifest::decode(bytes) {
            assert_eq!(manifest::decode(&manifest::encode(&read)).unwrap(), read);
            read.pg_control_bytes().unwrap();
            read.parsed_label().unwrap();
            let _ = read.state_stamp();
        }
    }),
    ("cluster", |bytes| {
        if let Ok(read) = cluster::decode(bytes) {
            assert_eq!(cluster::decode(&cluster::encode(&read)).unwrap(), read);
        }
    }),
    ("claim", |bytes| {
        if let Ok(read) = claim::decode(bytes) {
            assert_eq!(claim::decode(&claim::encode(&read)).unwrap(), read);
        }
    }),
    ("lineage", |bytes| {
        if let Ok(read) = lineage::decode(bytes) {
            assert_eq!(lineage::decode(&lineage::encode(&read)).unwrap(), read);
        }
    }),
    ("distrust", |bytes| {
        if let Ok(read) = distrust::decode(bytes) {
            assert_eq!(distrust::decode(&distrust::encode(&read)).unwrap(), read);
        }
    }),
    ("abandoned", |bytes| {
        if let Ok(read) = abandoned::decode(bytes) {
            assert_eq!(abandoned::decode(&abandoned::encode(&read)).unwrap(), read);
        }
    }),
    ("removal", |bytes| {
        if let Ok(read) = removal::decode(bytes) {
            assert_eq!(removal::decode(&removal::encode(&read)).unwrap(), read);
        }
    }),
    ("verdict", |bytes| {
        if let Ok(read) = removal::decode_verdict(bytes) {
            let written = removal::encode_verdict(&read);
            assert_eq!(removal::decode_verdict(&written).unwrap(), read);
        }
    }),
    ("restore", |bytes| {
        if let Ok(read) = restoring::decode(bytes) {
            assert_eq!(restoring::decode(&restoring::encode(&read)).unwrap(), read);
        }
    }),
    ("mark", |bytes| {
        if let Ok(read) = mark::decode(bytes) {
            assert_eq!(mark::decode(&mark::encode(&read)).unwrap(), read);
        }
    }),
    ("verified", |bytes| {
        if let Ok(read) = verified::decode(bytes) {
            assert_eq!(verified::decode(&verified::encode(&read)).unwrap(), read);
        }
    }),
    ("epoch", |bytes| {
        if let Ok(read) = epoch::decode_epoch(bytes) {
            let written = epoch::encode_epoch(&read);
            assert_eq!(epoch::decode_epoch(&written).unwrap(), read);
            // Nobody is let in by an epoch that signs itself, or that is signed by nobody.
            let _ = read.verify(None);
            assert!(read.verify(Some(&read)).is_err());
        }
    }),
    ("keybox", |bytes| {
        if let Ok(read) = epoch::decode_box(bytes) {
            assert_eq!(epoch::decode_box(&epoch::encode_box(&read)).unwrap(), read);
            let _ = read.sealed_bytes();
        }
    }),
    ("sealed manifest", |bytes| {
        if let Ok(read) = sealed::decode(bytes) {
            assert!(sealed::is_one(bytes));
            let _ = read.layer_id_bytes();
            let _ = read.stored_bytes();
            // The key is nobody's.
            assert!(read.open(&Key::new([3; 32]), [1; 16]).is_err());
        }
    }),
    ("released", |bytes| {
        if let Ok(read) = released::decode(bytes) {
            assert_eq!(released::decode(&released::encode(&read)).unwrap(), read);
        }
    }),
];

/// The first line's kind and version are kept; what it says of the rest is made right.
pub fn record(bytes: &[u8]) {
    for (_, decode) in KINDS {
        decode(bytes);
    }
    let end = bytes.iter().position(|&byte| byte == b'\n');
    let (line, body) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ').skip(1);
    let kind = words.next().unwrap_or_default();
    let version = words.next().unwrap_or_default();
    if version.parse::<u32>().is_ok() {
        let (length, digest) = (body.len(), contents_hex(body));
        let line = format!("pgstrata {kind} {version} {length} {digest}\n");
        let mended = [line.as_bytes(), body].concat();
        for (_, decode) in KINDS {
            decode(&mended);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Some(label) = label::Label::parse(text) {
            assert_eq!(label.as_str(), text);
            assert!(text.contains(label.own_stamp()));
        }
        if let Some((role, place)) = outside::parse(text) {
            assert_eq!(outside::entry_path(role, place), text);
        }
    }
}
