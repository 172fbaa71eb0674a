//! A shared library that shifts the wall clock of a process started with it.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_model::print_line;

/// The built library and the file with the offset, deleted on drop.
pub struct ClockShim {
    dir: PathBuf,
    offset: fs::File,
}

impl ClockShim {
    /// Builds the library. `None`, and a line on stderr, if there is no C compiler.
    pub fn build() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tidegate-clock-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let source = dir.join("clock_shim.c");
        fs::write(&source, include_str!("clock_shim.c")).unwrap();
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([&dir.join("shim.so"), &source])
            .status();
        let offset = fs::File::create(dir.join("offset")).unwrap();
        let shim = Self { dir, offset };
        shim.shift(0);
        match built {
            Ok(status) => assert!(status.success(), "cc cannot build {}", source.display()),
            Err(error) => {
                print_line(&format!("skipped: clocks cannot be stepped without cc ({error})"));
                return None;
            }
        }
        Some(shim)
    }

    /// Shows the true time plus this many microseconds from now on.
    pub fn shift(&self, micros: i64) {
        self.offset.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    /// Environment variables of a process that uses the shifted clock.
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.dir.join("shim.so")), ("TIDEGATE_CLOCK", self.dir.join("offset"))]
    }
}

impl Drop for ClockShim {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
