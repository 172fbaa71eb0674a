//! The W3C `traceparent` header.

use http::HeaderMap;

/// The span that a call is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TraceParent {
    /// The trace, never zero.
    pub trace: u128,
    /// The span, never zero.
    pub span: u64,
    /// Whether the caller samples the trace.
    pub sampled: bool,
}

/// The length of a header of version 00; later ones may be longer.
const LEN: usize = 55;

impl TraceParent {
    /// The parent span of a request with exactly one valid header. With an invalid header the
    /// request starts a new trace.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let (value, more) = (values.next()?, values.next());
        if more.is_some() { None } else { Self::parse(value.as_bytes()) }
    }

    /// `00-<32 hex digits>-<16>-<2>`, in lower case.
    fn parse(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(LEN)?;
        let [version, trace, span, flags] = [&head[..2], &head[3..35], &head[36..52], &head[53..]];
        let dashes = [head[2], head[35], head[52]];
        let fits = match version {
            b"00" => rest.is_empty(),
            b"ff" => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        if !fits || dashes != [b'-'; 3] {
            return None;
        }
        hex(version)?;
        let (trace, span, flags) = (hex(trace)?, u64::try_from(hex(span)?).ok()?, hex(flags)?);
        let sampled = flags & 1 == 1;
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }
}

/// At most 32 digits, in lower case.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_header_is_a_parent() {
        let parent = TraceParent {
            trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
            span: 0xb7ad_6b71_6920_3331,
            sampled: true,
        };
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        for (text, expected) in [
            (format!("00-{ids}-01"), Some(parent)),
            (format!("00-{ids}-00"), Some(TraceParent { sampled: false, ..parent })),
            (format!("00-{ids}-ff"), Some(parent)),
            (format!("00-{ids}-02"), Some(TraceParent { sampled: false, ..parent })),
            (format!("01-{ids}-01"), Some(parent)),
            (format!("cc-{ids}-01-what-comes-later"), Some(parent)),
            (format!("01-{ids}-01x"), None),
            (format!("00-{ids}-01-more"), None),
            (format!("ff-{ids}-01"), None),
            (format!("0g-{ids}-01"), None),
            (format!("00-{ids}-0"), None),
            (format!("00-{ids}-+1"), None),
            (format!("00_{ids}-01"), None),
            (format!("00-{}-01", ids.to_uppercase()), None),
            (format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), None),
            (format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)), None),
            (String::new(), None),
            ("é".repeat(55), None),
        ] {
            assert_eq!(TraceParent::parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn two_headers_are_no_parent() {
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of(&headers), None);
        let value = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.append("traceparent", value.parse().unwrap());
        assert!(TraceParent::of(&headers).is_some());
        headers.append("traceparent", value.parse().unwrap());
        assert_eq!(TraceParent::of(&headers), None);
    }
}
