//! What a repository in a directory promises beyond the conformance suite.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use pgstrata_store::error::Kind;
use pgstrata_store::repository::{Repository, RepositoryOptions};
use rustix::process::{Uid, geteuid};

fn open(directory: &std::path::Path) -> Repository {
    let url = format!("file://{}", directory.display());
    Repository::open(&RepositoryOptions::new(url)).unwrap()
}

/// A repository with the object `main/cluster`.
async fn with_one_object() -> (tempfile::TempDir, Repository) {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(scratch.path());
    repository
        .create("main/cluster", Bytes::from_static(b"x"))
        .await
        .unwrap();
    (scratch, repository)
}

#[tokio::test]
async fn nothing_but_objects_remains_after_a_create() {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(&scratch.path().join("new/repository"));
    repository
        .create("main/layer/a/claim", Bytes::from_static(b"x"))
        .await
        .unwrap();
    let directory = scratch.path().join("new/repository/main/layer/a");
    let names: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["claim"]);
    let mode = std::fs::metadata(directory.join("claim"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o007, 0, "others may not read backups");
}

#[tokio::test]
async fn a_missing_directory_is_not_an_empty_repository() {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(&scratch.path().join("absent"));
    for error in [
        repository.list("main").await.unwrap_err(),
        repository.list_names("").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::Repository);
        assert!(error.to_string().contains("absent"), "{error}");
        assert!(error.hint_text().is_some());
    }
}

/// What would be stored there is lost when the file system is mounted again.
#[tokio::test]
async fn nothing_is_put_where_the_repository_was_before_it_went_away() {
    let scratch = tempfile::tempdir().unwrap();
    let (root, away) = (scratch.path().join("root"), scratch.path().join("away"));
    let repository = open(&root);
    let body = || Bytes::from_static(b"x");
    repository.create("main/cluster", body()).await.unwrap();
    repository.get("main/cluster").await.unwrap();
    std::fs::rename(&root, &away).unwrap();
    let refused = async || {
        for key in ["main/other", "main/wal/1/file"] {
            let error = repository.create(key, body()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Repository, "{error}");
            assert!(error.to_string().contains("is it mounted?"), "{error}");
        }
    };
    // Nor is anything "not there", or no layer.
    let unknown = async || {
        for error in [
            repository.get("main/wal/1/file").await.unwrap_err(),
            repository.size("main/wal/1/file").await.unwrap_err(),
            repository.list("main").await.unwrap_err(),
            repository.list_names("main/layer").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Repository, "{error}");
        }
    };
    refused().await;
    unknown().await;
    assert!(!root.exists());
    std::fs::create_dir(&root).unwrap();
    refused().await;
    unknown().await;
    std::fs::remove_dir(&root).unwrap();
    std::fs::rename(&away, &root).unwrap();
    repository.create("main/wal/1/file", body()).await.unwrap();
}

/// No user has that number, and no file.
const SOMEBODY: u32 = 12_345;

/// Runs it as a user who is not root, who may read everything. Threads have users of their own: those that reach files are new.
fn as_somebody(act: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all();
    if geteuid().is_root() {
        runtime.on_thread_start(|| {
            let user = Uid::from_raw(SOMEBODY);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        });
    }
    runtime.build().unwrap().block_on(act);
}

#[test]
fn a_directory_whose_parent_may_be_entered_and_not_read_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    let let_others = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(scratch.path(), mode).unwrap();
    };
    let (there, new) = (scratch.path().join("there"), scratch.path().join("new"));
    std::fs::create_dir(&there).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(&there, Some(SOMEBODY), None).unwrap();
    }
    let body = Bytes::from_static(b"x");
    let_others(0o111);
    as_somebody(async {
        let repository = open(&there);
        let created = repository.create("main/mark/a/000000", body.clone()).await;
        created.unwrap();
        assert_eq!(repository.get("main/mark/a/000000").await.unwrap(), body);
    });
    // The name of what it has made itself must not be lost, however it was made, and whatever was there a moment ago.
    let_others(0o333);
    let (like, deep) = (
        std::fs::metadata(&there).unwrap(),
        scratch.path().join("deep/er"),
    );
    as_somebody(async {
        for root in [&new, &deep] {
            let repository = open(root);
            let created = [
                repository.create("main/cluster", body.clone()).await,
                repository.make_home("main", &like).await,
                repository.create("main/cluster", body.clone()).await,
            ];
            for error in created.map(Result::unwrap_err) {
                assert_eq!(error.kind(), Kind::Repository, "{error}");
                let parent = format!("\"{}\", in which it was,", scratch.path().display());
                assert!(error.to_string().contains(&parent), "{error}");
                assert_eq!(error.hint_text(), None, "{error}");
            }
        }
    });
    let_others(0o700);
    for name in ["new", "deep"] {
        assert!(!scratch.path().join(name).exists(), "{name}");
    }
}

/// Nor does anybody wait for the other end of a pipe.
#[tokio::test]
async fn what_has_a_name_and_is_no_file_is_listed_and_cannot_be_read() {
    let (scratch, repository) = with_one_object().await;
    let place = |name: &str| scratch.path().join("main").join(name);
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, place("pipe"), kind, mode, 0).unwrap();
    std::os::unix::fs::symlink("nowhere", place("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", place("loop")).unwrap();
    let listed = repository.list("main").await.unwrap();
    let listed: Vec<&str> = listed.iter().map(|object| &object.key[..]).collect();
    let all = ["main/cluster", "main/dangling", "main/loop", "main/pipe"];
    assert_eq!(listed, all);
    for key in &all[1..] {
        let path = scratch.path().join(key).display().to_string();
        for error in [
            repository.get(key).await.unwrap_err(),
            repository.size(key).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Repository, "{error}");
            assert!(error.to_string().contains(&path), "{error}");
        }
        repository.delete(key).await.unwrap();
    }
    assert_eq!(repository.list("main").await.unwrap().len(), 1);
}

#[tokio::test]
async fn hidden_files_and_empty_directories_are_not_listed() {
    let (scratch, repository) = with_one_object().await;
    std::fs::write(scratch.path().join("main/.0123.tmp"), b"left").unwrap();
    std::fs::create_dir_all(scratch.path().join("main/layer/empty")).unwrap();
    assert_eq!(repository.list_names("main").await.unwrap(), ["cluster"]);
    let listed = repository.list("").await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, "main/cluster");
}

#[tokio::test]
async fn names_cannot_leave_the_repository() {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(&scratch.path().join("inside"));
    for key in [
        "../outside",
        "main/../../outside",
        "/outside",
        "main//x",
        "main/.",
    ] {
        let created = repository.create(key, Bytes::from_static(b"x")).await;
        if let Err(error) = &created {
            assert_eq!(error.kind(), Kind::Usage, "{key}");
        }
        assert!(!scratch.path().join("outside").exists(), "{key}");
    }
}

#[tokio::test]
async fn a_read_only_repository_is_one_clear_error() {
    let error = open(std::path::Path::new("/proc/pgstrata"))
        .create("main/cluster", Bytes::from_static(b"x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Repository);
    assert!(
        error
            .to_string()
            .starts_with("could not write \"main/cluster\" in file:///proc")
    );
}

#[tokio::test]
async fn room_that_is_laid_up_is_no_object_and_is_given_up_in_portions() {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(scratch.path());
    let held = || std::fs::metadata(scratch.path().join(".reserve")).map_or(0, |m| m.len());
    assert!(!repository.free_room().await.unwrap());
    for _ in 0..2 {
        repository.lay_up_room().await;
        assert_eq!(held(), 1 << 20);
    }
    assert!(repository.list("").await.unwrap().is_empty());
    assert!(repository.list_names("").await.unwrap().is_empty());
    let mut portions = 0;
    while repository.free_room().await.unwrap() {
        portions += 1;
        assert_eq!(held(), (1 << 20) - portions * (1 << 18));
    }
    assert_eq!(portions, 4);
    assert!(!scratch.path().join(".reserve").exists());
    repository.lay_up_room().await;
    assert_eq!(held(), 1 << 20);
    // Memory and object stores have none.
    Repository::memory().lay_up_room().await;
    assert!(!Repository::memory().free_room().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_made_while_its_beginning_is_read_is_whole_or_not_there() {
    let scratch = tempfile::tempdir().unwrap();
    let repository = open(scratch.path());
    let body = Bytes::from(vec![7; 1134]);
    let mut seen = 0;
    for number in 0..3000 {
        let key = format!("main/wal/{number}");
        let create = {
            let (repository, key, body) = (repository.clone(), key.clone(), body.clone());
            tokio::spawn(async move { repository.create(&key, body).await })
        };
        while !create.is_finished() {
            match repository.get_up_to(&key, 0..4160).await {
                Ok(found) => {
                    seen += 1;
                    assert_eq!(found, body);
                }
                Err(error) => assert_eq!(error.kind(), Kind::NotFound, "{error}"),
            }
            match repository.get_start(&key, 100).await {
                Ok((found, size)) => {
                    assert_eq!((found.len(), size), (100, 1134));
                    break;
                }
                Err(error) => assert_eq!(error.kind(), Kind::NotFound, "{error}"),
            }
        }
        create.await.unwrap().unwrap();
    }
    assert!(seen > 0, "no read met a create");
}

/// Any directory may be a link to a file system of its own, which has one.
#[tokio::test]
async fn what_a_file_system_keeps_for_itself_is_not_listed() {
    let (scratch, repository) = with_one_object().await;
    let kept = scratch.path().join("main/wal/lost+found");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::write(kept.join("12"), "x").unwrap();
    assert!(repository.list("main/wal").await.unwrap().is_empty());
    assert_eq!(repository.list_names("main").await.unwrap(), ["cluster"]);
}

/// Who removes what is left of a backup that was given up looks for it after that.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_was_given_up_half_way_has_its_name_when_its_end_was_waited_for() {
    let (_scratch, repository) = with_one_object().await;
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let creating = tokio::spawn({
        let repository = repository.clone();
        async move {
            let write = move |out: &mut dyn Write| {
                begun.send(()).unwrap();
                may_go_on.lock().unwrap().recv().unwrap();
                out.write_all(b"late").unwrap();
                Ok(())
            };
            repository.create_written("main/late", write).await
        }
    });
    tokio::task::block_in_place(|| has_begun.recv().unwrap());
    creating.abort();
    assert!(creating.await.unwrap_err().is_cancelled());
    assert_eq!(repository.list("main").await.unwrap().len(), 1);
    let soon = tokio::time::timeout(Duration::from_millis(100), repository.end_of_creates());
    assert!(soon.await.is_err(), "it did not wait");
    go_on.send(()).unwrap();
    repository.end_of_creates().await;
    assert_eq!(repository.list("main").await.unwrap().len(), 2);
}
