//! The Python client from `docs/reference/redis-scripts.md` and the engine share one key's count.

use std::fs;
use std::io::{Write as _, stderr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{Algorithm, Clock, Limiter, Rule, SystemClock};
use tidegate_redis::Redis;

const DOCS: &str = include_str!("../../../../docs/reference/redis-scripts.md");

/// A folder with the program of the documentation and the script.
struct Python {
    dir: PathBuf,
}

impl Python {
    /// `None` if Python is not installed.
    fn new(name: &str) -> Option<Self> {
        if Command::new("python3").arg("--version").output().is_err() {
            // Written to stderr directly, as the test harness captures other output.
            let mut err = stderr().lock();
            writeln!(err, "skipped: {name} needs python3").unwrap();
            return None;
        }
        let dir = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let program = DOCS.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
        fs::write(dir.join("check.py"), program).unwrap();
        let script = tidegate_redis::decide_script(&[Algorithm::TokenBucket]);
        fs::write(dir.join("token-bucket.lua"), script).unwrap();
        fs::write(dir.join("lean.lua"), tidegate_redis::lean_script()).unwrap();
        Some(Self { dir })
    }

    fn check(&self, server: &RedisServer, key: &str, secret: Option<&str>) -> String {
        let mut command = Command::new("python3");
        command.args(["check.py", &server.port().to_string(), key]).current_dir(&self.dir);
        command.env_remove("TIDEGATE_SECRET");
        if let Some(secret) = secret {
            command.env("TIDEGATE_SECRET", secret);
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn limiter(server: &RedisServer, secret: Option<&str>) -> Limiter {
    let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
    let builder = match secret {
        Some(secret) => builder.secret(secret),
        None => builder,
    };
    let rule = Rule::new("api", ["5/m".parse().unwrap()]).unwrap();
    Limiter::with_rules(builder.build().unwrap(), [rule]).unwrap()
}

/// Rust and Python call in turns, and either starts. One permit recovers every 12 s, and a slow
/// machine may take as long to start Python.
#[tokio::test]
async fn python_and_rust_share_one_count() {
    let Some(python) = Python::new("share") else { return };
    for (first, secret) in [("rust", None), ("python", None), ("rust", Some("a fleet's secret"))] {
        let server = RedisServer::start();
        let limiter = limiter(&server, secret);
        let began = SystemClock.elapsed();
        for request in 0..6 {
            let by_rust = (request % 2 == 0) == (first == "rust");
            let (allowed, left) = if by_rust {
                let decision = limiter.check("user-42").await.unwrap();
                (decision.allowed(), decision.remaining())
            } else {
                let output = python.check(&server, "user-42", secret);
                let left = output.split(", ").nth(1).unwrap().split(' ').next().unwrap();
                (output.starts_with("allowed"), left.parse().unwrap())
            };
            let recovered = SystemClock.elapsed().saturating_sub(began).get() / 12_000_000;
            let what = format!("{first} first, request {request}, {recovered} recovered");
            let least = 4_u64.saturating_sub(request);
            assert!((least..=least + recovered).contains(&left), "{what}: {left} left");
            assert!(allowed || request == 5, "{what}");
            assert!(!allowed || request < 5 || recovered > 0, "{what}");
        }
        // One state for both, and the secret. Another hash tag would have made a second state.
        assert_eq!(server.cli(&["DBSIZE"]), "2", "{first} first");
    }
}

#[tokio::test]
async fn python_derives_the_numbers_that_rust_derives() {
    let Some(python) = Python::new("numbers") else { return };
    for (count, period, burst, text) in [
        (5_u64, 60_000_000_u64, 5_u64, "5/m"),
        (100, 1_000_000, 20, "100/s burst 20"),
        (77_777, 86_400_000_000, 77_777, "77777/24h"),
        (1, 1_000_000, (1 << 52) - 1, "1/s burst 4503599627370495"),
        (4_000_000_000, 1_000_000, 1, "4000000000/s burst 1"),
        (7, 30 * 86_400_000_000, 1_000, "7/30d burst 1000"),
    ] {
        let program = format!("import check; print(check.bucket({count}, {period}, {burst}))");
        let output =
            Command::new("python3").args(["-c", &program]).current_dir(&python.dir).output();
        let printed = String::from_utf8(output.unwrap().stdout).unwrap();
        let (algorithm, numbers) = text.parse::<tidegate::Limit>().unwrap().numbers();
        let numbers: Vec<u64> = [u64::from(algorithm)].into_iter().chain(numbers).collect();
        assert_eq!(printed.trim_end(), format!("{numbers:?}"), "{text}");
    }
}
