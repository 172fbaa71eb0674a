//! Valid and invalid URLs, and how they are printed.

use std::fmt::Write;

use super::redis_url::Login;
use super::*;
use crate::topology::deployment::{Deployment, ServerSet};

fn read(text: &str) -> RedisUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_form_is_parsed_and_printed_in_full_without_its_passwords() {
    for (text, printed) in [
        ("redis://h", "redis://h:6379"),
        ("redis://h/", "redis://h:6379"),
        ("redis://h:1/0", "redis://h:1"),
        ("redis://127.0.0.1:65535/15", "redis://127.0.0.1:65535/15"),
        ("redis://Redis_1.Example.", "redis://redis_1.example.:6379"),
        ("redis://[::1]", "redis://[::1]:6379"),
        ("redis://u:pw@[0:0:0::1]:7/2", "redis://u:***@[::1]:7/2"),
        ("redis://:pw@h", "redis://:***@h:6379"),
        ("redis://u:@h", "redis://u:***@h:6379"),
        ("redis://u:p@w:x@h", "redis://u:***@h:6379"),
        ("redis://u:p#w@h", "redis://u:***@h:6379"),
        ("redis://a%3Ab%0a:pw@h", "redis://a%3Ab%0A:***@h:6379"),
        ("redis://h?", "redis://h:6379"),
        ("rediss://h/3", "rediss://h:6379/3"),
        (
            "rediss://h?server_name=Redis.Example&key=/k%20y&cert=c.pem&ca=/etc/a+b.pem",
            "rediss://h:6379?ca=/etc/a%2Bb.pem&cert=c.pem&key=/k%20y&server_name=redis.example",
        ),
        ("rediss://h/1?server_name=::1", "rediss://h:6379/1?server_name=::1"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis+unix:///run/redis@1.sock", "unix:///run/redis@1.sock"),
        ("unix:///a%20b?password=p@w&user=u&db=2", "unix:///a%20b?db=2&user=u&password=***"),
        ("redis-sentinel://a,b:1/main", "redis-sentinel://a:26379,b:1/main"),
        (
            "redis-sentinel://u:pw@a,[::2]/my%2Fmain/4?sentinel_user=s&sentinel_password=pw",
            "redis-sentinel://u:***@a:26379,[::2]:26379/my%2Fmain/4?\
             sentinel_user=s&sentinel_password=***",
        ),
        (
            "rediss-sentinel://a/main/?sentinel_password=pw&ca=x",
            "rediss-sentinel://a:26379/main?ca=x&sentinel_password=***",
        ),
        ("redis-cluster://:pw@a,b:7000/0", "redis-cluster://:***@a:6379,b:7000"),
        ("rediss-cluster://a/?ca=x", "rediss-cluster://a:6379?ca=x"),
    ] {
        let url = read(text);
        assert_eq!(url.to_string(), printed, "{text}");
        assert_eq!(read(printed).to_string(), printed, "the printed form is a URL again");
        assert_eq!(format!("{url:?}"), format!("RedisUrl({printed})"));
    }
}

#[test]
fn logins_are_percent_decoded() {
    let login = |text: &str| {
        let Login { user, password } = read(text).login;
        (user.unwrap_or_default(), password.unwrap_or_default())
    };
    let pair = |user: &str, password: &str| (user.to_owned(), password.to_owned());
    assert_eq!(login("redis://u%40x:p%2Fw%3f%25@h"), pair("u@x", "p/w?%"));
    assert_eq!(login("redis://u:p@w:x@h"), pair("u", "p@w:x"));
    assert_eq!(login("redis://:a+b%C3%A9@h"), pair("", "a+bé"));
    assert_eq!(login("unix:///s?password=a%26b=c&user=d"), pair("d", "a&b=c"));
    assert_eq!(login("redis://h"), pair("", ""));
    let UrlHosts::Sentinel { login, .. } =
        read("redis-sentinel://a:b@h/m?sentinel_user=c&sentinel_password=d").servers
    else {
        panic!("not a Sentinel URL")
    };
    assert_eq!((login.user.as_deref(), login.password.as_deref()), (Some("c"), Some("d")));
}

#[test]
fn sentinels_have_a_separate_login_and_database_0() {
    let url = read("redis-sentinel://a:b@h1,h2:5/main/3?sentinel_password=d");
    let deployment = Deployment::new(&url).unwrap();
    let ServerSet::Sentinel(sentinels) = &deployment.servers else { panic!("{deployment:?}") };
    assert_eq!((sentinels.master.as_str(), sentinels.endpoints.len()), ("main", 2));
    assert!(format!("{:?}", deployment.dialer).contains("db: 3"), "{deployment:?}");
    assert!(format!("{:?}", sentinels.dialer).contains("db: 0"), "{deployment:?}");
    assert!(!format!("{deployment:?}").contains("\"b\""), "{deployment:?}");
}

/// Each with the secret `hunter2` somewhere.
const BAD: &[(&str, InvalidUrl)] = &[
    ("", InvalidUrl::Scheme),
    ("hunter2", InvalidUrl::Scheme),
    ("memory", InvalidUrl::Scheme),
    ("redis:/u:hunter2@h", InvalidUrl::Scheme),
    ("REDIS://u:hunter2@h", InvalidUrl::Scheme),
    ("http://u:hunter2@h", InvalidUrl::Scheme),
    ("rediss+unix:///hunter2", InvalidUrl::Scheme),
    ("redis://", InvalidUrl::Host),
    ("redis:///0", InvalidUrl::Host),
    ("redis://:6379", InvalidUrl::Host),
    ("redis://u:hunter2@", InvalidUrl::Host),
    ("redis://u:hunter2@:6379/", InvalidUrl::Host),
    ("redis://u:hunter2@lo cal/", InvalidUrl::Host),
    ("redis://u:hunter2@höst/", InvalidUrl::Host),
    ("redis://u:hunter2@h%41/", InvalidUrl::Host),
    ("redis://u:hunter2@h#0", InvalidUrl::Host),
    ("redis://u:hunter2@::1", InvalidUrl::Brackets),
    ("redis://u:hunter2@[::1", InvalidUrl::Brackets),
    ("redis://u:hunter2@[h]", InvalidUrl::Brackets),
    ("redis://u:hunter2@[::1]1", InvalidUrl::Brackets),
    ("redis://u:hunter2@h:", InvalidUrl::Port),
    ("redis://u:hunter2@h:0", InvalidUrl::Port),
    ("redis://u:hunter2@h:65536", InvalidUrl::Port),
    ("redis://u:hunter2@h:+1", InvalidUrl::Port),
    ("redis://u:hunter2@[::1]:x", InvalidUrl::Port),
    ("redis://h:hunter2", InvalidUrl::Port),
    ("redis://u:hunter2", InvalidUrl::Port),
    ("redis://hunter2@h", InvalidUrl::Login),
    ("redis://@h", InvalidUrl::Login),
    ("redis://:@h", InvalidUrl::Login),
    ("redis://u:hunter2%zz@h", InvalidUrl::Encoding),
    ("redis://u:hunter2%@h", InvalidUrl::Encoding),
    ("redis://u:hunter2%4@h", InvalidUrl::Encoding),
    ("redis://u:hunter2%ff@h", InvalidUrl::Encoding),
    ("redis://u:hunter2%+1@h", InvalidUrl::Encoding),
    ("redis://u:hun/ter2@h", InvalidUrl::StrayAt),
    ("redis://u:12?hunter2@h", InvalidUrl::StrayAt),
    ("redis-sentinel://u:12/hunter2@h", InvalidUrl::StrayAt),
    ("rediss://h?ca=hunter2@h", InvalidUrl::StrayAt),
    ("redis://u:hunter2@h/x", InvalidUrl::Database),
    ("redis://u:hunter2@h/-1", InvalidUrl::Database),
    ("redis://u:hunter2@h/0/", InvalidUrl::Database),
    ("redis://u:hunter2@h/hunter2", InvalidUrl::Database),
    ("redis://u:hunter2@h/2147483648", InvalidUrl::Database),
    ("redis://u:hunter2@h1,h2", InvalidUrl::SeveralHosts),
    ("redis-cluster://u:hunter2@h1,h2/1", InvalidUrl::ClusterDatabase),
    ("redis-cluster://u:hunter2@h1,,h2", InvalidUrl::Host),
    ("redis-cluster://u:hunter2@", InvalidUrl::Host),
    ("redis-sentinel://u:hunter2@h1,h2", InvalidUrl::Master),
    ("redis-sentinel://u:hunter2@h1/", InvalidUrl::Master),
    ("redis-sentinel://u:hunter2@h1//2", InvalidUrl::Master),
    ("redis-sentinel://u:hunter2@h1/a%20b", InvalidUrl::Master),
    ("redis-sentinel://u:hunter2@h1/m/hunter2", InvalidUrl::Database),
    ("redis-sentinel://h1/m?sentinel_user=hunter2", InvalidUrl::SentinelLogin),
    ("redis://h?sentinel_password=hunter2", InvalidUrl::Parameter),
    ("redis-cluster://h?sentinel_password=hunter2", InvalidUrl::Parameter),
    ("redis://h?password=hunter2", InvalidUrl::Parameter),
    ("redis://h?hunter2", InvalidUrl::Parameter),
    ("redis://h?hunter2=1", InvalidUrl::Parameter),
    ("redis://h?db=1", InvalidUrl::Parameter),
    ("rediss://h?ca=a&", InvalidUrl::Parameter),
    ("redis://u:hunter2@h?ca=x", InvalidUrl::NeedsTls),
    ("unix:///s?password=hunter2&server_name=x", InvalidUrl::NeedsTls),
    ("rediss://u:hunter2@h?cert=x", InvalidUrl::HalfIdentity),
    ("rediss://u:hunter2@h?key=hunter2", InvalidUrl::HalfIdentity),
    ("rediss://u:hunter2@h?ca=x&ca=y", InvalidUrl::Repeated),
    ("rediss://u:hunter2@h?ca=", InvalidUrl::EmptyParameter),
    ("rediss://u:hunter2@h?server_name=hunter2%20", InvalidUrl::ServerName),
    ("unix://", InvalidUrl::SocketPath),
    ("unix:///", InvalidUrl::SocketPath),
    ("unix:///hunter2%00", InvalidUrl::SocketPath),
    ("unix://u:hunter2@/path", InvalidUrl::SocketHost),
    ("unix://hunter2", InvalidUrl::SocketHost),
    ("unix:///s?user=hunter2", InvalidUrl::Login),
    ("unix:///s?pass=hunter2", InvalidUrl::Parameter),
    ("unix:///s?db=hunter2", InvalidUrl::Database),
];

#[test]
fn each_invalid_url_is_refused_with_its_own_reason() {
    for &(text, why) in BAD {
        assert_eq!(text.parse::<RedisUrl>(), Err(why), "{text}");
    }
    let long = format!("redis://u:{}@h", "x".repeat(RedisUrl::MAX_LEN));
    assert_eq!(long.parse::<RedisUrl>(), Err(InvalidUrl::TooLong));
    let many = format!("redis-cluster://{}h", "h,".repeat(RedisUrl::MAX_HOSTS));
    assert_eq!(many.parse::<RedisUrl>(), Err(InvalidUrl::TooManyHosts));
}

#[test]
fn no_text_about_a_url_contains_a_secret() {
    let mut texts = String::new();
    for &(text, why) in BAD {
        let error = crate::Redis::builder(text).build().unwrap_err();
        write!(texts, "{why} {why:?} {error} {error:?} ").unwrap();
    }
    for text in [
        "redis://u:hunter2@h",
        "redis://:hun@ter2@h/3",
        "redis://u:%68unter2@h",
        "redis-sentinel://u:hunter2@h/m?sentinel_user=s&sentinel_password=hunter2",
        "redis-cluster://:hunter2@h",
        "unix:///s?user=u&password=hunter2",
    ] {
        let url = read(text);
        let deployment = Deployment::new(&url).unwrap();
        write!(texts, "{url} {url:?} {deployment:?} ").unwrap();
    }
    assert!(texts.len() > 5_000, "there are texts");
    for secret in ["hunter2", "ter2", "%68"] {
        assert!(!texts.contains(secret), "{texts}");
    }
}

/// Pieces with a meaning for the parser, in random order.
#[test]
fn the_parser_never_panics_and_every_url_is_printed_and_parsed_again() {
    let pieces = [
        "redis://",
        "unix://",
        "redis-sentinel://",
        "h",
        "/",
        ":",
        "@",
        "?",
        "ca=",
        "%",
        "%4",
        ",",
        "[",
        "]",
        "1",
        "é",
        "\0",
        "&",
    ];
    let mut read = 0;
    let mut state = 1_u64;
    for _ in 0..200_000 {
        let mut text = String::new();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(pieces[(state >> 33) as usize % pieces.len()]);
        }
        if let Ok(url) = text.parse::<RedisUrl>() {
            let printed = url.to_string();
            assert_eq!(
                printed.parse::<RedisUrl>().map(|url| url.to_string()),
                Ok(printed),
                "{text:?}"
            );
            read += 1;
        }
    }
    assert!(read > 100, "only {read} were valid");
}
