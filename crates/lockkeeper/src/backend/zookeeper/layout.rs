//! What is where: names of locks as paths, requests as names of nodes, and the words in a node.

use crate::backend::Kind;
use crate::name::Name;
use crate::owner::{Owner, RequestId};
use crate::token::Token;
pub(super) use crate::url::Recipe as Dialect;

/// Under the node of a semaphore: the line for permits.
pub(super) const LOCKS: &str = "locks";
/// Under the node of a semaphore: the permits.
pub(super) const LEASES: &str = "leases";
/// Under the node of a latch: its count.
pub(super) const LATCH: &str = "latch";

/// Above all cells. No name of a lock is written like this.
pub(super) const CELLS: &str = "%stock";

/// The last sequence number that is used. At the end of its numbers ZooKeeper gives the last one to
/// everybody, or goes on into negative ones, which sort backwards: everybody would hold the lock. The
/// gap is for those in line meanwhile.
pub(super) const LAST_SEQUENCE: i64 = i32::MAX as i64 - (1 << 16);

/// The name of a lock as one element of a path.
///
/// What ZooKeeper forbids, `/` and `%` are written as `%` and two hexadecimal digits for each byte.
/// So `a` and `a/b` are neighbours and not parent and child: a lock is disturbed by whatever is
/// below its node. Do *not* change this: two versions must agree.
pub(super) fn element(name: &Name) -> String {
    let text = name.as_str();
    let mut element = String::with_capacity(text.len());
    for (at, c) in text.chars().enumerate() {
        // ZooKeeper keeps a node of this name for itself at the root.
        let reserved = at == 0 && text == "zookeeper";
        if reserved || matches!(c, '/' | '%') || forbidden(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                element.push_str(&format!("%{byte:02X}"));
            }
        } else {
            element.push(c);
        }
    }
    element
}

/// The server compares UTF-16 units, so whatever needs two of them is forbidden too.
fn forbidden(c: char) -> bool {
    c.is_control() || matches!(u32::from(c), 0xd800..=0xf8ff | 0xfff0..)
}

/// The name of the lock at this element of a path, if it is one.
pub(super) fn name(element: &str) -> Option<Name> {
    crate::url::decode(element).ok()?.parse().ok()
}

/// In which way a node asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Mutex,
    Read,
    Write,
}

impl Role {
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Read | Kind::FairRead => Self::Read,
            Kind::Write | Kind::FairWrite => Self::Write,
            _ => Self::Mutex,
        }
    }

    pub(super) fn is_shared(self) -> bool {
        self == Self::Read
    }
}

impl Dialect {
    fn marker(self, role: Role) -> &'static str {
        match (self, role) {
            (Self::Curator, Role::Mutex) => "lock-",
            (Self::Curator, Role::Read) => "__READ__",
            (Self::Curator, Role::Write) => "__WRIT__",
            (Self::Kazoo, Role::Read) => "__rlock__",
            (Self::Kazoo, _) => "__lock__",
        }
    }

    /// What every node of a request begins with.
    pub(super) fn stem(self, id: RequestId) -> String {
        let hex = id.to_string();
        match self {
            Self::Curator => {
                let (a, b, c, d, e) =
                    (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
                format!("_c_{a}-{b}-{c}-{d}-{e}-")
            }
            Self::Kazoo => hex,
        }
    }

    /// The node of a request without its sequence number.
    pub(super) fn prefix(self, id: RequestId, role: Role) -> String {
        self.stem(id) + self.marker(role)
    }

    /// What a child of a lock's node means to those in line; `None`: nothing.
    ///
    /// Curator takes *every* child for a contender and sorts those that it does not know by their
    /// whole name, so we must as well: they hold it up, and whoever shares the lock with it.
    pub(super) fn contender(self, child: &str) -> Option<Contender<'_>> {
        let ours = [Role::Mutex, Role::Read, Role::Write].into_iter().find_map(|role| {
            let (_, key) = child.rsplit_once(self.marker(role))?;
            Some(Contender { child, role, key })
        });
        match self {
            Self::Curator => {
                Some(ours.unwrap_or(Contender { child, role: Role::Mutex, key: child }))
            }
            Self::Kazoo => ours.filter(|contender| {
                let digits = contender.key.strip_prefix('-').unwrap_or(contender.key);
                digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit())
            }),
        }
    }
}

/// A permit of Curator's semaphore.
pub(super) fn lease_prefix(id: RequestId) -> String {
    Dialect::Curator.stem(id) + "lease-"
}

/// Somebody who has a lock or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender<'a> {
    pub(super) child: &'a str,
    pub(super) role: Role,
    /// What decides the order, compared as text.
    pub(super) key: &'a str,
}

impl Contender<'_> {
    /// Whether it stands in line, or is only something that happens to be there.
    pub(super) fn is_in_line(&self) -> bool {
        self.key.len() < self.child.len()
    }
}

/// What is written in a node of ours: who asks, and what others want to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) owner: Owner,
    pub(super) family: Option<String>,
    pub(super) ttl_ms: Option<u64>,
    /// Where the token is not that of the node: reading under or after one's own write lock.
    pub(super) token: Option<Token>,
}

impl Note {
    pub(super) fn to_text(&self) -> String {
        let mut text = self.owner.to_string();
        if let Some(family) = &self.family {
            text += &format!(" family={}", family.replace(' ', "_"));
        }
        if let Some(ttl) = self.ttl_ms {
            text += &format!(" ttl={ttl}");
        }
        if let Some(token) = self.token {
            text += &format!(" token={token}");
        }
        text
    }

    /// Reads any node: other clients write their address, a name, or nothing.
    pub(super) fn parse(data: &[u8]) -> Self {
        let text = String::from_utf8_lossy(data);
        let (first, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let word =
            |key: &str| rest.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        match (Owner::try_from(first.to_owned()), word("family")) {
            (Ok(owner), Some(family)) => Self {
                owner,
                family: Some(family.replace('_', " ")),
                ttl_ms: word("ttl").and_then(|ttl| ttl.parse().ok()),
                token: word("token").and_then(|token| token.parse().ok()).and_then(Token::new),
            },
            _ => {
                let owner = Owner::foreign(if text.is_empty() { "unknown" } else { &text });
                Self { owner, family: None, ttl_ms: None, token: None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_element_and_back() {
        let cases = [
            ("orders-42", "orders-42"),
            ("app/orders", "app%2Forders"),
            ("a%2Fb", "a%252Fb"),
            ("日本", "日本"),
            ("...", "..."),
            ("zookeeper", "%7Aookeeper"),
            ("zookeepers", "zookeepers"),
            ("\u{1F512}", "%F0%9F%94%92"),
            ("\u{E000}", "%EE%80%80"),
        ];
        for (text, expected) in cases {
            let lock: Name = text.parse().expect("valid");
            assert_eq!(element(&lock), expected);
            assert_eq!(name(expected), Some(lock));
        }
        assert_eq!(name("%zz"), None);
        assert_eq!(name(CELLS), None);
    }

    #[test]
    fn requests_have_the_names_that_others_expect() {
        let id = RequestId::from_bytes([0xab; 16]);
        assert_eq!(
            Dialect::Curator.prefix(id, Role::Write),
            "_c_abababab-abab-abab-abab-abababababab-__WRIT__"
        );
        assert_eq!(
            Dialect::Kazoo.prefix(id, Role::Mutex),
            "abababababababababababababababab__lock__"
        );
    }

    #[test]
    fn children_are_understood_as_the_others_do() {
        let read = Dialect::Curator.contender("_c_x-__READ__0000000007").expect("all count");
        assert_eq!((read.role, read.key), (Role::Read, "0000000007"));
        let odd = Dialect::Curator.contender("leases").expect("all count");
        assert_eq!((odd.role, odd.key, odd.is_in_line()), (Role::Mutex, "leases", false));
        assert_eq!(Dialect::Kazoo.contender("leases"), None);
        assert_eq!(Dialect::Kazoo.contender("aa__lock__7"), None);
        let kazoo = Dialect::Kazoo.contender("aa__rlock__0000000007").expect("a reader");
        assert_eq!((kazoo.role, kazoo.key), (Role::Read, "0000000007"));
    }

    #[test]
    fn notes_survive_a_round_trip_and_foreign_ones_are_shown() {
        let note = Note {
            owner: Owner::try_from("host-1-ab:7".to_owned()).expect("an owner"),
            family: Some("read-write lock".into()),
            ttl_ms: Some(1500),
            token: Token::new(9),
        };
        assert_eq!(Note::parse(note.to_text().as_bytes()), note);
        for foreign in ["10.0.0.1", "", "a b c", "x:1"] {
            let note = Note::parse(foreign.as_bytes());
            assert_eq!((note.family, note.token), (None, None), "{foreign}");
        }
    }
}
