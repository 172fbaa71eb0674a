//! The URL of the store from `REDIS_*`.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The values of `REDIS_*`; empty ones are not set.
#[derive(Clone, Default, Debug)]
pub(super) struct RedisVariables<'v> {
    /// `tcp` or `unix`.
    pub(super) socket: &'v str,
    /// `SINGLE`, `SENTINEL` or `CLUSTER`.
    pub(super) kind: &'v str,
    pub(super) url: &'v str,
    /// `password` or `user:password`.
    pub(super) auth: &'v str,
    /// The same, of the sentinels.
    pub(super) sentinel_auth: &'v str,
    pub(super) tls: bool,
    pub(super) ca: &'v str,
    pub(super) cert: &'v str,
    pub(super) key: &'v str,
}

impl RedisVariables<'_> {
    /// The URL that `--store` would have, or what is wrong with the variables.
    pub(super) fn store_url(&self) -> Result<String, String> {
        if self.url.contains("://") {
            return self.complete_url();
        }
        let scheme = |kind: &str| format!("redis{}{kind}", if self.tls { "s" } else { "" });
        let login = match login(self.auth) {
            (None, None) => String::new(),
            (user, password) => {
                format!("{}:{}@", user.unwrap_or_default(), password.unwrap_or_default())
            }
        };
        let address = match (self.kind.to_ascii_uppercase().as_str(), self.socket) {
            ("SINGLE", "unix") => return self.unix_url(),
            ("SINGLE", _) => format!("{}://{login}{}", scheme(""), self.url),
            ("CLUSTER", _) => format!("{}://{login}{}", scheme("-cluster"), self.url),
            ("SENTINEL", _) => {
                let (master, sentinels) = self.url.split_once(',').ok_or(
                    "REDIS_URL of REDIS_TYPE=SENTINEL needs the name of the master and the \
                     sentinels: mymaster,host:26379,host:26379",
                )?;
                format!("{}://{login}{sentinels}/{}", scheme("-sentinel"), encoded(master))
            }
            _ => return Err("REDIS_TYPE: expected SINGLE, SENTINEL or CLUSTER".into()),
        };
        Ok(address + &self.parameters())
    }

    fn unix_url(&self) -> Result<String, String> {
        if self.tls {
            return Err("REDIS_TLS needs REDIS_SOCKET_TYPE=tcp".into());
        }
        if !self.sentinel_auth.is_empty() {
            return Err("REDIS_SENTINEL_AUTH needs REDIS_TYPE=SENTINEL".into());
        }
        let (user, password) = login(self.auth);
        let fields = [("user", user), ("password", password)];
        Ok(format!("unix://{}{}", self.url, query(&fields)))
    }

    /// A URL is complete: a variable beside it would have no effect, so it is refused.
    fn complete_url(&self) -> Result<String, String> {
        let is_single = self.kind.eq_ignore_ascii_case("SINGLE");
        let beside = [
            ("REDIS_TYPE", !is_single, "redis-cluster:// or redis-sentinel://"),
            ("REDIS_AUTH", !self.auth.is_empty(), "redis://user:password@host"),
            ("REDIS_SENTINEL_AUTH", !self.sentinel_auth.is_empty(), "?sentinel_password="),
            ("REDIS_TLS", self.tls, "rediss://"),
            ("REDIS_TLS_CACERT", !self.ca.is_empty(), "?ca="),
            ("REDIS_TLS_CLIENT_CERT", !self.cert.is_empty(), "?cert="),
            ("REDIS_TLS_CLIENT_KEY", !self.key.is_empty(), "?key="),
        ];
        match beside.into_iter().find(|(_, is_given, _)| *is_given) {
            None => Ok(self.url.into()),
            Some((name, _, instead)) => Err(format!(
                "{name} has no effect with a complete URL in REDIS_URL; unset it, and put it into \
                 the URL: {instead}"
            )),
        }
    }

    fn parameters(&self) -> String {
        let given = |value: &str| (!value.is_empty()).then(|| encoded(value));
        let of_tls = |value: &str| given(value).filter(|_| self.tls);
        let (user, password) = login(self.sentinel_auth);
        query(&[
            ("ca", of_tls(self.ca)),
            ("cert", of_tls(self.cert)),
            ("key", of_tls(self.key)),
            ("sentinel_user", user),
            ("sentinel_password", password),
        ])
    }
}

/// User and password, percent-encoded.
fn login(auth: &str) -> (Option<String>, Option<String>) {
    match auth.split_once(':') {
        _ if auth.is_empty() => (None, None),
        Some((user, password)) => (Some(encoded(user)), Some(encoded(password))),
        None => (None, Some(encoded(auth))),
    }
}

fn query(fields: &[(&str, Option<String>)]) -> String {
    let given =
        fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    let given: Vec<String> = given.collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_server::Store;

    #[test]
    fn every_kind_of_redis_has_a_url_that_the_store_accepts() {
        let plain = RedisVariables { socket: "tcp", kind: "SINGLE", ..RedisVariables::default() };
        let cases = [
            (RedisVariables { url: "redis:6379", ..plain.clone() }, "redis://redis:6379"),
            (
                RedisVariables { url: "redis:6379", auth: "a/b@", ..plain.clone() },
                "redis://:a%2Fb%40@redis:6379",
            ),
            (
                RedisVariables { url: "redis:6379", auth: "u:p", tls: true, ..plain.clone() },
                "rediss://u:p@redis:6379",
            ),
            (
                RedisVariables {
                    url: "/run/redis.sock",
                    socket: "unix",
                    auth: "p",
                    ..plain.clone()
                },
                "unix:///run/redis.sock?password=p",
            ),
            (
                RedisVariables { url: "a:1,b:2", kind: "cluster", ..plain.clone() },
                "redis-cluster://a:1,b:2",
            ),
            (
                RedisVariables {
                    url: "mymaster,a:1,b:2",
                    kind: "SENTINEL",
                    sentinel_auth: "s",
                    ..plain.clone()
                },
                "redis-sentinel://a:1,b:2/mymaster?sentinel_password=s",
            ),
            (RedisVariables { url: "redis://x:1/2", ..plain.clone() }, "redis://x:1/2"),
        ];
        for (variables, wanted) in cases {
            let url = variables.store_url().unwrap();
            assert_eq!(url, wanted);
            assert!(url.parse::<Store>().is_ok(), "{url}");
        }
        let with_ca = RedisVariables { url: "r:1", tls: true, ca: "/c.pem", ..plain.clone() };
        assert_eq!(with_ca.store_url().unwrap(), "rediss://r:1?ca=%2Fc%2Epem");
        let unused = RedisVariables { url: "r:1", ca: "/c.pem", ..plain.clone() };
        assert_eq!(unused.store_url().unwrap(), "redis://r:1", "no TLS, no files");
        for invalid in [
            RedisVariables { url: "a:1", kind: "SENTINEL", ..plain.clone() },
            RedisVariables { url: "a:1", kind: "OTHER", ..plain.clone() },
            RedisVariables { url: "/s", socket: "unix", tls: true, ..plain.clone() },
            RedisVariables { url: "redis://a:1", auth: "p", ..plain.clone() },
            RedisVariables { url: "/s", socket: "unix", sentinel_auth: "p", ..plain.clone() },
        ] {
            assert!(invalid.store_url().is_err(), "{invalid:?}");
        }
    }
}
