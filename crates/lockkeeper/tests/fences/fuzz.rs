//! Headers that nobody should send.

use std::sync::atomic::Ordering;

use lockkeeper::Name;
use lockkeeper::fence::http::http::{HeaderValue, Request};
use lockkeeper::fence::http::{FENCE, Missing};
use testkit::random::Random;
use tower::{Service, ServiceExt};

use crate::service::counted;

/// Whether it is a fence: by a second reading of the specification, which decodes generously, spells the
/// result anew and wants to see the same.
fn is_fence(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let Some((token, name)) = text.split_once(' ') else { return false };
    let number = token.parse::<u64>().unwrap_or(0);
    if number == 0 || number.to_string() != token {
        return false;
    }
    let mut decoded = Vec::new();
    let mut parts = name.split('%');
    decoded.extend(parts.next().unwrap().bytes());
    for part in parts {
        let Some(code) = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) else {
            return false;
        };
        decoded.push(code);
        decoded.extend(part[2..].bytes());
    }
    let Ok(decoded) = String::from_utf8(decoded) else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:".contains(c);
    let again: String = decoded
        .chars()
        .map(|c| match plain(c) {
            true => c.to_string(),
            false => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
        })
        .collect();
    again == name && decoded.parse::<Name>().is_ok()
}

/// A header that was right, spoilt in a few places.
fn spoilt(random: &mut Random) -> Vec<u8> {
    const ODD: &[u8] = b" \t0123456789%2FfC3aA/.+-,;:=\"'\\{}[]()@\xC3\xA4\xFF~";
    const RIGHT: [&str; 5] =
        ["7 orders/42", "18446744073709551615 a%20b", "1 %C3%A4", "42 a:b/c", "1000 x%25y"];
    let mut pick = |below: usize| usize::try_from(random.below(below as u64)).unwrap();
    let mut value = RIGHT[pick(RIGHT.len())].as_bytes().to_vec();
    for _ in 0..=pick(3) {
        let (at, odd) = (pick(value.len() + 1), ODD[pick(ODD.len())]);
        match pick(5) {
            0 => value.insert(at, odd),
            1 if at < value.len() => value[at] = odd,
            2 if at < value.len() => drop(value.remove(at)),
            3 => value.truncate(at),
            _ => {
                let more = value.clone();
                value.splice(at..at, more);
            }
        }
    }
    value
}

#[tokio::test]
async fn a_malformed_header_is_refused_and_never_passes() {
    let mut random = Random::seeded();
    // The most generous: without a header everything passes.
    let (count, mut service) = counted(Missing::Pass);
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..20_000 {
        let value = spoilt(&mut random);
        let Ok(header) = HeaderValue::from_bytes(&value) else { continue };
        let mut request = Request::new(());
        request.headers_mut().append(FENCE, header);
        let twice = random.below(10) == 0;
        if twice {
            request.headers_mut().append(FENCE, HeaderValue::from_static("99 orders/42"));
        }
        let before = count.load(Ordering::Relaxed);
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        let (status, reached) =
            (response.status().as_u16(), count.load(Ordering::Relaxed) > before);
        let shown = String::from_utf8_lossy(&value);
        if is_fence(&value) && !twice {
            assert!(matches!((status, reached), (200, true) | (412, false)), "{status}: {shown:?}");
            right += 1;
        } else {
            assert_eq!((status, reached), (400, false), "{shown:?}");
            wrong += 1;
        }
    }
    eprintln!("{right} headers were fences in spite of it, {wrong} were not");
    assert!(right > 100 && wrong > 1000);
}
