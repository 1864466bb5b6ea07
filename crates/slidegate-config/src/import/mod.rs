//! Conversion of limits of other services to configuration files.

pub mod envoy;
pub mod limitador;
mod write;

use std::path::Path;

use crate::{Config, Problems};

/// Converted limits.
#[derive(Debug)]
pub struct Imported {
    /// List of the limits, one per line.
    pub summary: String,
    pub output: ImportedOutput,
    /// Problems of the limits that are left out.
    pub left_out: Option<Problems>,
}

/// Files of converted limits.
#[derive(Debug)]
pub enum ImportedOutput {
    /// Text of a configuration file.
    Config(String),
    /// Files of envoyproxy/ratelimit, for one folder.
    Folder(Vec<ImportedFile>),
}

/// File in a folder.
#[derive(Debug)]
pub struct ImportedFile {
    pub name: String,
    pub text: String,
}

impl Imported {
    /// Returns limits that are converted to one configuration file. Rejects limits of the file at `source` that slidegate
    /// does not support.
    fn config(source: &Path, summary: String, text: String) -> Result<Self, Vec<Problems>> {
        Config::parse(&text).map_err(|problems| {
            vec![Problems::new(&format!("conversion of {}", source.display()), problems)]
        })?;
        Ok(Self { summary, output: ImportedOutput::Config(text), left_out: None })
    }
}
