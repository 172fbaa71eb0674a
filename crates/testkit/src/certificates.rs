//! Certificates in PEM files of a temporary folder, deleted on drop.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority and the folder of its files.
pub struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

/// Paths of a certificate and its key in PEM format.
pub struct TestCertificate {
    pub cert: String,
    pub key: String,
}

impl TestCa {
    #[expect(clippy::new_without_default, reason = "it creates files")]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("tidegate-certificates-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("authority {count}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let ca = Self { issuer, dir };
        ca.write("ca.pem", &ca.root());
        ca
    }

    /// Path of the authority's certificate.
    pub fn ca(&self) -> String {
        self.path("ca.pem")
    }

    pub fn root(&self) -> String {
        self.issuer.as_ref().pem()
    }

    /// Issues a certificate for a host name or an address.
    pub fn issue(&self, name: &str) -> TestCertificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        // A certificate with the authority's name would be taken for a self-signed one.
        params.distinguished_name.push(DnType::CommonName, name);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        TestCertificate {
            cert: self.write(&format!("{name}.crt"), &signed.pem()),
            key: self.write(&format!("{name}.key"), &key.serialize_pem()),
        }
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.dir.join(name), text).unwrap();
        self.path(name)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for TestCa {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
