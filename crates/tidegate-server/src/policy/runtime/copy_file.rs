//! The last copy of the fields on disk (`--runtime-file`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::copy::RuntimeCopy;
use super::field::{RuntimeField, timestamp, timestamp_micros};

/// A file that is replaced as a whole.
#[derive(Clone, Debug)]
pub(crate) struct CopyFile(PathBuf);

#[derive(Serialize, Deserialize)]
struct CopyJson {
    /// Time of the store at the last contact.
    contact: Option<String>,
    fields: BTreeMap<String, Value>,
}

impl CopyFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.into())
    }

    /// Reads the copy; an empty one if there is no file. A file that is not a copy is an error:
    /// the next write would replace it.
    pub(crate) fn load(&self) -> io::Result<RuntimeCopy> {
        let bytes = match fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(RuntimeCopy::default());
            }
            read => read?,
        };
        let json: CopyJson = serde_json::from_slice(&bytes)?;
        let contact = json.contact.as_deref().and_then(timestamp_micros);
        let mut fields = Vec::with_capacity(json.fields.len());
        for (name, value) in json.fields {
            let Some(field) = RuntimeField::read(&value.to_string()) else {
                return Err(io::Error::other(format!("the field {name:?} cannot be read")));
            };
            fields.push((name, field));
        }
        Ok(RuntimeCopy::stored(fields, contact))
    }

    /// Replaces the file. It has the old or the new contents at any time, also after a crash.
    pub(crate) fn save(&self, copy: &RuntimeCopy) -> io::Result<()> {
        let mut fields = BTreeMap::new();
        for (name, field) in copy.fields() {
            fields.insert(name.to_string(), serde_json::from_str(&field.text)?);
        }
        let json = CopyJson { contact: copy.contact().map(timestamp), fields };
        let mut new = self.0.clone().into_os_string();
        new.push(".new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(&json)?)?;
        file.sync_all()?;
        fs::rename(new, &self.0)
    }
}
