//! A bucket as it was at a moment: read-only. What was asked for once is remembered, because the past does not change.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::bucket::{Bucket, generic};
use super::listing::Version;
use super::moment;
use crate::repository::reason::OfThePast;

fn of_the_past(error: Error) -> Error {
    match error {
        Error::Generic { store, source } => Error::Generic {
            store,
            source: OfThePast(source).into(),
        },
        Error::PermissionDenied { path, source } => Error::PermissionDenied {
            path,
            source: OfThePast(source).into(),
        },
        error => error,
    }
}

/// The bucket, and the moment.
#[derive(Clone, Debug)]
pub(super) struct AsOf {
    bucket: Bucket,
    moment: Timestamp,
    /// By path: the version that was there, if any was.
    known: Arc<Mutex<HashMap<Path, Option<Version>>>>,
}

impl AsOf {
    pub(super) fn new(bucket: Bucket, moment: Timestamp) -> Self {
        Self {
            bucket,
            moment,
            known: Arc::default(),
        }
    }

    /// The version of the object at `path` that was there.
    async fn version(&self, path: &Path) -> Result<Version> {
        let known = self.known().get(path).cloned();
        let found = match known {
            Some(known) => known,
            None => {
                let versions = self.bucket.versions(path.as_ref(), "").await;
                let versions = versions.map_err(of_the_past)?;
                let versions = versions.into_iter();
                let own = versions
                    .filter(|version| version.key == path.as_ref())
                    .collect();
                let own = moment::by_key(own).into_values().next().unwrap_or_default();
                let found = moment::at(&own, self.moment).cloned();
                self.known().insert(path.clone(), found.clone());
                found
            }
        };
        found.ok_or_else(|| Error::NotFound {
            path: path.to_string(),
            source: format!("<Code>NoSuchKey</Code> at {}", self.moment).into(),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Path, Option<Version>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects below `prefix` that were there, in order.
    async fn objects(&self, prefix: Option<&Path>, after: &str) -> Result<Vec<ObjectMeta>> {
        let prefix = prefix.map_or("", |path| path.as_ref());
        let below = match prefix {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let versions = self.bucket.versions(&below, after).await;
        let versions = versions.map_err(of_the_past)?;
        let mut objects = Vec::new();
        for (key, versions) in moment::by_key(versions) {
            let Some(found) = moment::at(&versions, self.moment) else {
                continue;
            };
            let path = Path::parse(&key).map_err(generic)?;
            objects.push(meta(path.clone(), found));
            self.known().insert(path, Some(found.clone()));
        }
        Ok(objects)
    }

    fn read_only<T>(&self) -> Result<T> {
        let what = format!(
            "the repository is shown as it was at {}, and nothing is written into it",
            self.moment
        );
        Err(Error::NotSupported {
            source: what.into(),
        })
    }
}

fn meta(location: Path, version: &Version) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: SystemTime::from(version.modified).into(),
        size: version.size_bytes.unwrap_or_default(),
        e_tag: version.e_tag.clone(),
        version: Some(version.id.clone()),
    }
}

impl fmt::Display for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as of {}", self.bucket.s3, self.moment)
    }
}

#[async_trait]
impl ObjectStore for AsOf {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.read_only()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.read_only()
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        let version = self.version(from).await?;
        let options = options.with_version(Some(version.id));
        let got = self.bucket.s3.get_opts(from, options).await;
        got.map_err(of_the_past)
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([self.read_only()]).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_with_offset(prefix, &Path::default())
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (own, prefix, offset) = (self.clone(), prefix.cloned(), offset.clone());
        let listed = async move {
            let objects = own.objects(prefix.as_ref(), offset.as_ref()).await?;
            Ok::<_, Error>(stream::iter(objects).map(Ok))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let depth = prefix.map_or(0, |prefix| prefix.parts().count());
        let (mut objects, mut prefixes) = (Vec::new(), BTreeSet::new());
        for object in self.objects(prefix, "").await? {
            match object.location.parts().count() - depth {
                1 => objects.push(object),
                _ => {
                    let parts = object.location.parts().take(depth + 1);
                    prefixes.insert(parts.collect::<Path>());
                }
            }
        }
        Ok(ListResult {
            common_prefixes: prefixes.into_iter().collect(),
            objects,
            extensions: Default::default(),
        })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        self.read_only()
    }
}
