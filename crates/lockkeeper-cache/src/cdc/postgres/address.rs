//! Where the database is, and who we are there: what the URL says.

use std::fmt;
use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::tls::Tls;
use crate::error::{Error, Result};

/// A URL of sqlx, taken apart: replication goes through a connection that is not sqlx's.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) options: PgConnectOptions,
    pub(super) password: Option<String>,
    pub(super) tls: Tls,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self> {
        // It may name a password.
        let bad = || Error::Config("the URL of the database makes no sense".into());
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(bad());
        }
        let options = PgConnectOptions::from_str(url).map_err(|_| bad())?;
        if options.get_database().is_none() {
            return Err(Error::Config("the URL must name a database to follow".into()));
        }
        // sqlx keeps these to itself, except when it writes a URL; with a name or a host of another form it could not.
        let written = options.clone().username("u").host("h").to_url_lossy();
        let mut tls = Tls { mode: options.get_ssl_mode(), ..Tls::default() };
        for (name, value) in written.query_pairs() {
            // So it writes the name of a file.
            let value = value.strip_prefix("file: ").unwrap_or(&value);
            let value = Some(value.to_owned());
            match &*name {
                "sslrootcert" => tls.ca = value,
                "sslcert" => tls.cert = value,
                "sslkey" => tls.key = value,
                _ => {}
            }
        }
        let password = written.password().map(decoded);
        Ok(Self { options, password, tls })
    }

    pub(super) fn database(&self) -> &str {
        self.options.get_database().unwrap_or_default()
    }

    /// A TLS connection cannot be had without saying so.
    pub(super) fn wants_tls(&self) -> bool {
        !matches!(self.tls.mode, PgSslMode::Disable | PgSslMode::Allow)
            && self.options.get_socket().is_none()
    }

    /// Without the brackets of an IPv6 address.
    pub(super) fn host(&self) -> &str {
        self.options.get_host().trim_matches(['[', ']'])
    }
}

/// Without the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        write!(f, "{}@{host}:{port}/{}", self.options.get_username(), self.database())
    }
}

/// What stands for bytes as `%2F` does, as those bytes.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|_| *first == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_who_and_where_and_the_password_is_not_shown() {
        let url =
            "postgres://m%40e:p%25%2F%20%3Fx@[::1]:77/shop?sslmode=verify-ca&sslrootcert=/a%20b";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.password.as_deref(), Some("p%/ ?x"));
        assert_eq!((address.host(), address.database()), ("::1", "shop"));
        assert_eq!(address.tls.ca.as_deref(), Some("/a b"));
        assert!(address.wants_tls());
        assert_eq!(format!("{address:?}"), "m@e@[::1]:77/shop");
        let address = Address::parse("postgres://me@h/shop?password=x&host=::1").unwrap();
        assert_eq!((address.password.as_deref(), address.host()), (Some("x"), "::1"));
    }

    #[test]
    fn a_url_that_makes_no_sense_is_refused_and_not_shown() {
        for url in ["", "shop", "mysql://me:secret@h/db", "postgres://me:secret@h:x/db"] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains("makes no sense") && !error.contains("secret"), "{error}");
        }
        let error = Address::parse("postgres://me:secret@h").unwrap_err().to_string();
        assert!(error.contains("name a database") && !error.contains("secret"), "{error}");
    }
}
