//! Refusals, as RFC 9457 has them.

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::header::{Fence, Malformed, NEWEST};
use crate::fence::{Error, Stale};
use crate::token::Token;

/// Why a request does not reach the service inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Stale(Stale),
    Malformed(Malformed),
    Missing,
    /// The store of tokens does not say, so nothing passes.
    Unavailable,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Stale(stale) => Self::Stale(stale),
            error => {
                // What it says of the inside of the service is not for its clients.
                tracing::warn!(error = &error as &dyn std::error::Error, "no token can be checked");
                Self::Unavailable
            }
        }
    }
}

impl Problem {
    /// A newer one came after it had passed.
    pub(super) fn overtaken(fence: &Fence, newest: Token) -> Self {
        let resource = fence.name().to_string();
        Self::Stale(Stale { resource, token: fence.token(), newest: Some(newest) })
    }

    fn kind(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Stale(_) => (StatusCode::PRECONDITION_FAILED, "stale", "The lock was lost"),
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed", "Malformed fence"),
            Self::Missing => (StatusCode::PRECONDITION_REQUIRED, "missing", "No fence"),
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Fence out of order")
            }
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Stale(stale) => stale.to_string(),
            Self::Malformed(malformed) => malformed.to_string(),
            Self::Missing => "say the token and the name of the lock in Lockkeeper-Fence".into(),
            Self::Unavailable => "the token could not be compared; try again".into(),
        }
    }

    pub(super) fn response<R: From<String>>(&self) -> Response<R> {
        let (status, kind, title) = self.kind();
        let mut body = json!({
            "type": format!("urn:lockkeeper:fence:{kind}"),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail(),
        });
        let mut newest = None;
        if let Self::Stale(stale) = self {
            newest = stale.newest;
            body["name"] = stale.resource.as_str().into();
            // Texts: numbers of JSON are exact up to 2^53 only where JavaScript reads them.
            body["token"] = stale.token.to_string().into();
            body["newest"] = stale.newest.map(|token| token.to_string()).into();
        }
        let mut response = Response::new(R::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(newest) = newest {
            headers.insert(NEWEST, HeaderValue::from(newest.get()));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_and_why() {
        let token = |number| Token::new(number).unwrap();
        let (resource, newest) = ("a\"b".to_owned(), Some(token(u64::MAX)));
        let stale = Problem::Stale(Stale { resource, token: token(3), newest });
        let response: Response<String> = stale.response();
        assert_eq!(response.status(), 412);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(super::super::newest(response.headers()), newest);
        let body: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        assert_eq!(body["type"], "urn:lockkeeper:fence:stale");
        assert_eq!(body["name"], "a\"b");
        assert_eq!((&body["token"], &body["newest"]), (&"3".into(), &u64::MAX.to_string().into()));
        let broken = Error::Store { context: "secret of the inside".into(), source: None };
        let response: Response<String> = Problem::from(broken).response();
        assert_eq!(response.status(), 503);
        assert!(!response.body().contains("secret"), "{}", response.body());
    }
}
