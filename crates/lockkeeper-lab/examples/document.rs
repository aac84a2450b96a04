//! Runs all experiments and writes what came out into a folder: a document and its pictures.
//!
//! `cargo run --release -p lockkeeper-lab --example document -- docs`

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use lockkeeper_lab::report::{Document, document};
use lockkeeper_lab::{Progress, Setting, catalogue, run};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("into which folder?")?);
    let all: Vec<_> = catalogue::ALL.iter().collect();
    let findings = run(&all, &Setting::new(1, None), &mut |progress| {
        if let Progress::Begins { at, of, experiment, .. } = progress {
            // If nobody reads it there is nobody to tell.
            let _ = writeln!(io::stderr(), "{at} of {of}: {}", experiment.name);
        }
    })
    .await;
    let bad = [findings.wrong(), findings.skipped()].concat();
    if !bad.is_empty() {
        return Err(bad.join("\n").into());
    }
    let Document { text, pictures } = document(&findings);
    std::fs::create_dir_all(folder.join("lab"))?;
    std::fs::write(folder.join("LAB.md"), text)?;
    for (path, picture) in pictures {
        std::fs::write(folder.join(path), picture)?;
    }
    Ok(())
}
