//! Certificates for tests, in files of a folder of their own that is gone with the test.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Who certifies, and where the files lie.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// A certificate and its key, as files in PEM form.
pub(crate) struct Certificate {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-certificates-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("authority {count}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, dir };
        authority.write("ca.pem", &authority.root());
        authority
    }

    /// The file with its own certificate.
    pub(crate) fn ca(&self) -> String {
        self.path("ca.pem")
    }

    pub(crate) fn root(&self) -> String {
        self.issuer.as_ref().pem()
    }

    /// A certificate for `name`, a name or an address.
    pub(crate) fn certify(&self, name: &str) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        // One with the name of its authority would be taken for that itself.
        params.distinguished_name.push(DnType::CommonName, name);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Certificate {
            cert: self.write(&format!("{name}.crt"), &signed.pem()),
            key: self.write(&format!("{name}.key"), &key.serialize_pem()),
        }
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.dir.join(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
