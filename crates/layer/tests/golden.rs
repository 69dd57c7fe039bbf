//! The golden files: what version 1 of the format wrote is read for ever, and damage to any byte is found.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure is a failed test"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pgstrata_layer::frame::Codec;
use pgstrata_layer::index::{
    FinishedPart, IndexReader, check_digest_header, check_digest_part, digests_of,
};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::label::Label;
use pgstrata_layer::manifest::{IndexPartRef, Manifest};
use pgstrata_layer::pack::verify_pack;
use pgstrata_layer::{
    Result, abandoned, claim, cluster, lineage, manifest, mark, released, removal, restoring,
    verified, wal,
};

use support::sample::{self, Objects};
use support::{SourceFile, StoredLayer, restore};

const VARIANTS: [&str; 3] = ["none", "lz4", "zstd1"];

fn golden(variant: &str) -> Objects {
    fn walk(root: &Path, folder: PathBuf, objects: &mut Objects) {
        for found in fs::read_dir(folder).unwrap() {
            let path = found.unwrap().path();
            if path.is_dir() {
                walk(root, path, objects);
            } else {
                let key = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                objects.insert(key, fs::read(path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(variant);
    let mut objects = Objects::new();
    walk(&root, root.clone(), &mut objects);
    assert!(!objects.is_empty(), "golden files are missing");
    objects
}

fn cluster_name() -> ClusterName {
    ClusterName::parse("main").unwrap()
}

fn layer_of(objects: &Objects, label: &str) -> (Manifest, StoredLayer) {
    let (name, label) = (cluster_name(), Label::parse(label).unwrap());
    let manifest = manifest::decode(&objects[&name.manifest_key(&label)]).unwrap();
    let parts = (0..)
        .zip(&manifest.index)
        .map(|(number, reference)| FinishedPart {
            number,
            index: objects[&name.index_key(&label, number)].clone(),
            digest: objects[&name.digest_key(&label, number)].clone(),
            reference: reference.clone(),
        });
    let packs =
        (0..manifest.pack_count).map(|number| objects[&name.pack_key(&label, number)].clone());
    let layer = StoredLayer {
        layer_id: manifest.layer_id_bytes().unwrap(),
        parts: parts.collect(),
        packs: packs.collect(),
    };
    (manifest, layer)
}

fn assert_restores(
    restored: &BTreeMap<String, SourceFile>,
    expected: &BTreeMap<String, SourceFile>,
) {
    let paths = |files: &BTreeMap<String, SourceFile>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(restored), paths(expected));
    for (path, file) in expected {
        assert!(&restored[path] == file, "{path} is not what was stored");
    }
}

#[test]
fn a_merged_layer_stands_for_what_it_replaces() {
    let objects = golden("merged");
    assert_eq!(
        objects,
        sample::merged_repository(),
        "equal layers give equal bytes"
    );
    let (merged_manifest, merged) = layer_of(&objects, sample::MERGED);
    let (child_manifest, child) = layer_of(&objects, sample::CHILD);
    assert_eq!(merged_manifest, sample::merged_manifest(&merged));
    assert_eq!(child_manifest, sample::child_manifest(&child));
    let object = &objects[&cluster_name().manifest_key(&Label::parse(sample::MERGED).unwrap())];
    assert!(object.starts_with(b"pgstrata manifest 2 "));
    let parent = child_manifest.parent.unwrap();
    assert!(merged_manifest.stands_for(&manifest::digest(object), &parent));
    let other = pgstrata_layer::manifest::ParentRef {
        manifest_digest: manifest::digest(object),
        ..parent
    };
    assert!(!merged_manifest.stands_for(&manifest::digest(object), &other));
    assert_eq!(merged_manifest.state_stamp(), "20261121-103000");
    assert_restores(
        &restore(&[&merged]).unwrap(),
        &sample::files_of_incremental(),
    );
    assert_restores(
        &restore(&[&child, &merged]).unwrap(),
        &sample::files_of_incremental(),
    );
}

#[test]
fn a_layer_names_what_may_lie_beside_it() {
    let objects = golden("beside");
    assert_eq!(objects, sample::beside_repository());
    let (found, layer) = layer_of(&objects, sample::BESIDE);
    assert_eq!(found, sample::beside_manifest(&layer));
    assert_restores(&restore(&[&layer]).unwrap(), &sample::files_of_full());
    let key = cluster_name().manifest_key(&Label::parse(sample::BESIDE).unwrap());
    assert!(objects[&key].starts_with(b"pgstrata manifest 3 "));
    // Nor does its version fit one without, or that of one without fit it.
    let text = String::from_utf8(objects[&key].clone()).unwrap();
    let older = text.replacen("manifest 3 ", "manifest 1 ", 1);
    let error = manifest::decode(older.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("a layer beside its own"), "{error}");
    let mut nameless = sample::beside_manifest(&layer);
    nameless
        .beside
        .as_mut()
        .unwrap()
        .layer
        .manifest_digest
        .pop();
    let error = manifest::decode(&manifest::encode(&nameless))
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be"), "{error}");
}

#[test]
fn a_lineage_file_is_read_and_written_again_to_the_byte() {
    let files = golden("data");
    assert_eq!(files, sample::data_directory());
    let bytes = &files[lineage::FILE_NAME];
    assert!(bytes.starts_with(b"pgstrata lineage 1 "));
    assert_eq!(lineage::decode(bytes).unwrap(), sample::lineage_file());
    let files = golden("data-of-run");
    assert_eq!(files, sample::data_directory_of_run());
    let bytes = &files[lineage::FILE_NAME];
    assert!(bytes.starts_with(b"pgstrata lineage 2 "));
    assert_eq!(lineage::decode(bytes).unwrap(), sample::lineage_of_run());
}

#[test]
fn what_those_at_work_tell_each_other_is_read_and_written_again_to_the_byte() {
    let objects = golden("work");
    assert_eq!(objects, sample::work());
    let name = cluster_name();
    let object = &objects[&name.manifest_key(&Label::parse(sample::INCREMENTAL).unwrap())];
    assert!(abandoned::is_one(object) && object.starts_with(b"pgstrata abandoned 1 "));
    assert_eq!(
        abandoned::decode(object).unwrap(),
        sample::abandoned_record()
    );
    assert!(manifest::decode(object).is_err());
    let object = &objects[&name.removal_key(sample::ID)];
    assert_eq!(removal::decode(object).unwrap(), sample::removal_record());
    let object = &objects[&name.verdict_key(sample::ID)];
    assert_eq!(
        removal::decode_verdict(object).unwrap(),
        sample::verdict_record()
    );
    let object = &objects[&name.restore_key(sample::ID)];
    assert_eq!(restoring::decode(object).unwrap(), sample::restore_record());
}

#[test]
fn marks_and_what_was_given_up_are_read_and_written_again_to_the_byte() {
    let objects = golden("kept");
    assert_eq!(objects, sample::kept());
    let (name, label) = (cluster_name(), Label::parse(sample::FULL).unwrap());
    for expected in sample::marks() {
        let object = &objects[&name.mark_key(&label, expected.number)];
        assert!(object.starts_with(b"pgstrata mark 1 "));
        assert_eq!(mark::decode(object).unwrap(), expected);
    }
    let object = &objects["main/wal-released/0000000016000028"];
    assert_eq!(released::decode(object).unwrap(), sample::released_record());
    let object = &objects[&name.verdict_key(sample::ID)];
    assert!(object.starts_with(b"pgstrata verdict 2 "));
    assert_eq!(
        removal::decode_verdict(object).unwrap(),
        sample::verdict_that_keeps_wal()
    );
}

#[test]
fn of_which_timelines_wal_was_given_up_is_read_and_written_again_to_the_byte() {
    let objects = golden("released");
    assert_eq!(objects, sample::released());
    let object = &objects["main/wal-released/0000000016000028"];
    assert!(object.starts_with(b"pgstrata released 2 "));
    assert_eq!(
        released::decode(object).unwrap(),
        sample::released_of_timelines()
    );
}

#[test]
fn what_a_verification_leaves_is_read_and_written_again_to_the_byte() {
    let objects = golden("verified");
    assert_eq!(objects, sample::verified());
    let object = &objects[&cluster_name().verified_key(sample::VERIFIED)];
    assert!(object.starts_with(b"pgstrata verified 1 "));
    assert_eq!(verified::decode(object).unwrap(), sample::verified_record());

    let objects = golden("found-damaged");
    assert_eq!(objects, sample::found_damaged());
    let object = &objects[&cluster_name().verified_key(sample::VERIFIED)];
    assert!(object.starts_with(b"pgstrata verified 2 "));
    assert_eq!(verified::decode(object).unwrap(), sample::damage_record());

    let objects = golden("found-more");
    assert_eq!(objects, sample::found_more());
    let object = &objects[&cluster_name().verified_key(sample::VERIFIED)];
    assert!(object.starts_with(b"pgstrata verified 3 "));
    assert_eq!(verified::decode(object).unwrap(), sample::counted_record());
}

#[test]
fn the_record_of_a_locked_cluster_is_read_and_other_programs_refuse_it() {
    let objects = golden("retained");
    assert_eq!(objects, sample::retained());
    let object = &objects[&cluster_name().cluster_key()];
    // A program that does not lock knows versions 1 and 2.
    assert!(object.starts_with(b"pgstrata cluster 3 "));
    assert_eq!(cluster::decode(object).unwrap(), sample::retained_record());
    let said = |change: fn(&mut cluster::ClusterRecord)| {
        let mut record = sample::retained_record();
        change(&mut record);
        cluster::decode(&cluster::encode(&record)).map(|_| ())
    };
    assert!(said(|_| {}).is_ok());
    assert!(said(|record| record.retention.as_mut().unwrap().days = 0).is_err());
    assert!(said(|record| record.retention.as_mut().unwrap().version = 2).is_err());
    assert!(said(|record| record.format = 1).is_err());
    assert!(said(|record| record.retention = None).is_err());
}

#[test]
fn the_version_of_a_manifest_says_whether_it_replaces() {
    let objects = golden("merged");
    for label in [sample::MERGED, sample::CHILD] {
        let object = &objects[&cluster_name().manifest_key(&Label::parse(label).unwrap())];
        let text = String::from_utf8(object.clone()).unwrap();
        let other = match label {
            sample::MERGED => text.replacen("manifest 2 ", "manifest 1 ", 1),
            _ => text.replacen("manifest 1 ", "manifest 2 ", 1),
        };
        assert_ne!(text, other);
        let error = manifest::decode(other.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("layers that it replaces"), "{error}");
        let later = |version: u32| {
            let newer = format!("manifest {version} ");
            let text = other.replacen("manifest 1 ", &newer, 1);
            text.replacen("manifest 2 ", &newer, 1)
        };
        let error = manifest::decode(later(3).as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains("names no layer beside its own"), "{error}");
        let newer = later(4);
        let error = manifest::decode(newer.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("does not know"), "{error}");
    }
}

#[test]
fn golden_repositories_decode_to_what_was_stored() {
    for variant in VARIANTS {
        let objects = golden(variant);
        let (full_manifest, full) = layer_of(&objects, sample::FULL);
        let (child_manifest, child) = layer_of(&objects, sample::INCREMENTAL);
        assert_eq!(full_manifest, sample::full_manifest(&full));
        let parent = &objects[&cluster_name().manifest_key(&Label::parse(sample::FULL).unwrap())];
        assert_eq!(child_manifest, sample::incremental_manifest(&child, parent));
        assert_restores(&restore(&[&full]).unwrap(), &sample::files_of_full());
        assert_restores(
            &restore(&[&child, &full]).unwrap(),
            &sample::files_of_incremental(),
        );
        assert_eq!(
            cluster::decode(&objects["main/cluster"]).unwrap(),
            sample::cluster_record()
        );
        let claim_key = format!("main/layer/{}/claim", sample::FULL);
        assert_eq!(
            claim::decode(&objects[&claim_key]).unwrap(),
            sample::claim_record()
        );
        let history = &objects["main/wal/00000002/00000002.history"];
        assert_eq!(
            wal::decode(sample::HISTORY, history).unwrap(),
            sample::HISTORY_TEXT.as_bytes()
        );
        let header = wal::header(&history[..wal::HEADER_BYTES]).unwrap();
        assert_eq!(header.system_identifier, sample::SYSTEM_IDENTIFIER);
        assert_eq!(header.file_name, sample::HISTORY);
        if variant != "none" {
            let object = &objects["main/wal/00000001/000000010000000000000003"];
            assert_eq!(
                wal::decode(sample::SEGMENT, object).unwrap(),
                sample::segment()
            );
            assert!(wal::decode("000000010000000000000004", object).is_err());
        }
    }
}

/// Compressed objects may differ when a compression library changes; these may not.
#[test]
fn uncompressed_golden_objects_are_written_again_to_the_byte() {
    let (golden, built) = (golden("none"), sample::repository(Codec::None));
    assert_eq!(
        golden.keys().collect::<Vec<_>>(),
        built.keys().collect::<Vec<_>>()
    );
    for (key, bytes) in &golden {
        assert!(bytes == &built[key], "{key} is written differently");
    }
}

#[test]
fn records_are_written_again_to_the_byte_in_every_variant() {
    for variant in VARIANTS {
        for (key, bytes) in golden(variant) {
            let again = match key.rsplit('/').next().unwrap() {
                "cluster" => cluster::encode(&cluster::decode(&bytes).unwrap()),
                "claim" => claim::encode(&claim::decode(&bytes).unwrap()),
                "manifest" => manifest::encode(&manifest::decode(&bytes).unwrap()),
                _ => continue,
            };
            assert_eq!(again, bytes, "{key}");
        }
    }
}

/// Reads an object in every way it can be read.
fn check_object(objects: &Objects, key: &str, bytes: &[u8]) -> Result<()> {
    let name = key.rsplit('/').next().unwrap();
    if key.starts_with("main/wal/") {
        return wal::decode(name, bytes).map(drop);
    }
    match name {
        "cluster" => return cluster::decode(bytes).map(drop),
        "claim" => return claim::decode(bytes).map(drop),
        "manifest" => return manifest::decode(bytes).map(drop),
        _ => {}
    }
    let label = key.split('/').nth(2).unwrap();
    let (kind, number) = name.split_once('-').unwrap();
    let number: u32 = number.parse().unwrap();
    let manifest = manifest::decode(&objects[&format!("main/layer/{label}/manifest")])?;
    let layer_id = manifest.layer_id_bytes()?;
    let part = &manifest.index[0];
    match kind {
        "pack" => verify_pack(bytes, layer_id, number, |_, _| Ok(())).map(drop),
        "index" => check_index(bytes, layer_id, number, part),
        "digest" => {
            let index = objects[&format!("main/layer/{label}/index-{number:06}")].clone();
            check_digest(bytes, index, layer_id, (number, part))
        }
        other => panic!("no golden object is a {other:?}"),
    }
}

fn check_index(bytes: &[u8], id: [u8; 16], number: u32, part: &IndexPartRef) -> Result<()> {
    for entry in IndexReader::new(Bytes::copy_from_slice(bytes), id, number, part)? {
        entry?;
    }
    Ok(())
}

fn check_digest(
    bytes: &[u8],
    index: Vec<u8>,
    id: [u8; 16],
    (number, part): (u32, &IndexPartRef),
) -> Result<()> {
    check_digest_part(bytes, id, number, part)?;
    for entry in IndexReader::new(index.into(), id, number, part)? {
        digests_of(bytes, id, number, &entry?.page_digests)?;
    }
    Ok(())
}

#[test]
fn every_flipped_byte_is_found() {
    for variant in VARIANTS {
        let objects = golden(variant);
        for (key, bytes) in &objects {
            check_object(&objects, key, bytes).unwrap();
            let mut damaged = bytes.clone();
            for at in 0..bytes.len() {
                for flip in [1 << (at % 8), 0xFF] {
                    damaged[at] ^= flip;
                    let outcome = check_object(&objects, key, &damaged);
                    assert!(
                        outcome.is_err(),
                        "byte {at} of {variant}/{key} flipped by {flip:#x}"
                    );
                    damaged[at] ^= flip;
                }
            }
        }
    }
}

#[test]
fn rule_13_13_every_truncation_is_found() {
    for variant in VARIANTS {
        let objects = golden(variant);
        for (key, bytes) in &objects {
            for length in 0..bytes.len() {
                let outcome = check_object(&objects, key, &bytes[..length]);
                assert!(outcome.is_err(), "{variant}/{key} cut to {length} bytes");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(
                check_object(&objects, key, &longer).is_err(),
                "{variant}/{key} made longer"
            );
        }
    }
}

#[test]
fn an_object_of_another_place_is_refused() {
    let objects = golden("none");
    let pack = &objects[&format!("main/layer/{}/pack-000000", sample::FULL)];
    let no_frames = |_, _: &[u8]| Ok(());
    assert!(verify_pack(pack, sample::FULL_ID, 0, no_frames).is_ok());
    assert!(verify_pack(pack, sample::FULL_ID, 1, no_frames).is_err());
    assert!(verify_pack(pack, sample::INCREMENTAL_ID, 0, no_frames).is_err());
    let (manifest, layer) = layer_of(&objects, sample::FULL);
    let part = &layer.parts[0];
    let index = || Bytes::from(part.index.clone());
    assert!(IndexReader::new(index(), sample::FULL_ID, 1, &manifest.index[0]).is_err());
    assert!(IndexReader::new(index(), sample::INCREMENTAL_ID, 0, &manifest.index[0]).is_err());
    assert!(check_digest_header(&part.digest, sample::FULL_ID, 1).is_err());
}

#[test]
fn a_shard_directory_that_lies_is_refused() {
    let objects = golden("none");
    let (manifest, layer) = layer_of(&objects, sample::FULL);
    let honest = manifest.index[0].clone();
    let lies = [
        IndexPartRef {
            first_path: "AAAA".to_owned(),
            ..honest.clone()
        },
        IndexPartRef {
            entries: honest.entries + 1,
            ..honest.clone()
        },
        IndexPartRef {
            entries: honest.entries - 1,
            ..honest.clone()
        },
        IndexPartRef {
            index_bytes: honest.index_bytes + 1,
            ..honest.clone()
        },
        IndexPartRef {
            digest_bytes: honest.digest_bytes - 8,
            ..honest.clone()
        },
        IndexPartRef {
            digest_bytes: honest.digest_bytes + 8,
            ..honest.clone()
        },
        IndexPartRef {
            digest_bytes: 0,
            ..honest
        },
    ];
    for lie in lies {
        let bytes = &layer.parts[0].index;
        assert!(
            check_index(bytes, sample::FULL_ID, 0, &lie).is_err(),
            "{lie:?}"
        );
    }
}
