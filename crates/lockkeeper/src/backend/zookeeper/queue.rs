//! Whose turn it is: pure decisions over the names of a lock's children.
//!
//! Everybody waits only for those with a smaller sequence number, so no two can wait for each other,
//! and everybody watches exactly one node, so one release wakes one waiter.

use super::layout::{Contender, Dialect};

/// What the children of a lock mean to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn<'a> {
    /// It holds the lock.
    Ours,
    /// It waits, and need not look again before this child is gone.
    After(&'a str),
    /// It is not there any more.
    Gone,
}

/// Whose turn it is, as seen by the child `ours`.
pub(super) fn turn<'a>(dialect: Dialect, children: &'a [String], ours: &str) -> Turn<'a> {
    let Some(me) =
        children.iter().find(|child| *child == ours).and_then(|child| dialect.contender(child))
    else {
        return Turn::Gone;
    };
    let ahead = children
        .iter()
        .filter_map(|child| dialect.contender(child))
        .filter(|other| other.key < me.key && !(me.role.is_shared() && other.role.is_shared()))
        .max_by(|one, two| one.key.cmp(two.key));
    match ahead {
        Some(other) => Turn::After(other.child),
        None => Turn::Ours,
    }
}

/// Who stands between two children; of several the last.
pub(super) fn between<'a>(
    dialect: Dialect,
    children: &'a [String],
    holder: &str,
    ours: &str,
) -> Option<&'a str> {
    let (holder, me) = (dialect.contender(holder)?, dialect.contender(ours)?);
    let others = children.iter().filter_map(|child| dialect.contender(child));
    let between = others.filter(|other| holder.key < other.key && other.key < me.key);
    between.max_by(|one, two| one.key.cmp(two.key)).map(|other| other.child)
}

/// Those in line, in order, and how many of them hold the lock.
pub(super) fn line(dialect: Dialect, children: &[String]) -> (Vec<Contender<'_>>, usize) {
    let mut line: Vec<_> = children
        .iter()
        .filter_map(|child| dialect.contender(child))
        .filter(Contender::is_in_line)
        .collect();
    // Reading under one's own write lock has the number of that.
    line.sort_by_key(|contender| (contender.key, contender.role.is_shared(), contender.child));
    let holders = match line.first() {
        None => 0,
        Some(first) if first.role.is_shared() => {
            line.iter().take_while(|other| other.role.is_shared()).count()
        }
        Some(first) => line.iter().take_while(|other| other.key == first.key).count(),
    };
    (line, holders)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mutex_waits_for_the_one_before_it() {
        let all =
            children(&["_c_b-lock-0000000002", "_c_c-lock-0000000003", "_c_a-lock-0000000001"]);
        let turn = |ours| turn(Dialect::Curator, &all, ours);
        assert_eq!(turn("_c_a-lock-0000000001"), Turn::Ours);
        assert_eq!(turn("_c_c-lock-0000000003"), Turn::After("_c_b-lock-0000000002"));
        assert_eq!(turn("_c_d-lock-0000000004"), Turn::Gone);
    }

    #[test]
    fn readers_wait_for_writers_and_mutexes_only() {
        let all = children(&[
            "_c_a-__READ__0000000001",
            "_c_b-__READ__0000000002",
            "_c_c-__WRIT__0000000003",
            "_c_d-__READ__0000000004",
            "_c_e-lock-0000000005",
        ]);
        let turn = |ours| turn(Dialect::Curator, &all, ours);
        assert_eq!(turn("_c_b-__READ__0000000002"), Turn::Ours);
        assert_eq!(turn("_c_c-__WRIT__0000000003"), Turn::After("_c_b-__READ__0000000002"));
        assert_eq!(turn("_c_d-__READ__0000000004"), Turn::After("_c_c-__WRIT__0000000003"));
        assert_eq!(turn("_c_e-lock-0000000005"), Turn::After("_c_d-__READ__0000000004"));
        assert_eq!(line(Dialect::Curator, &all).1, 2);
    }

    #[test]
    fn reading_under_a_write_lock_is_no_obstacle_to_either() {
        let all = children(&["_c_a-__WRIT__0000000001", "_c_a-__READ__0000000001"]);
        assert_eq!(turn(Dialect::Curator, &all, &all[0]), Turn::Ours);
        assert_eq!(turn(Dialect::Curator, &all, &all[1]), Turn::Ours);
        let (line, holders) = line(Dialect::Curator, &all);
        assert_eq!((line[0].child, holders), (all[0].as_str(), 2));
    }

    #[test]
    fn strange_children_count_as_they_do_for_curator() {
        let mut all = children(&["_c_a-lock-0000000001", "leases", "latch", "_strange"]);
        assert_eq!(turn(Dialect::Curator, &all, "_c_a-lock-0000000001"), Turn::Ours);
        all.push("0".into());
        assert_eq!(turn(Dialect::Curator, &all, "_c_a-lock-0000000001"), Turn::After("0"));
        assert_eq!(line(Dialect::Curator, &all).0.len(), 1);
    }

    proptest! {
        /// Whoever is in line: an exclusive holder is alone, somebody always holds, whoever waits
        /// watches somebody who is there and ahead, and the line says the same as each one's turn.
        #[test]
        fn turns_and_line_agree(roles in proptest::collection::vec(0_usize..3, 1..20), kazoo: bool) {
            let dialect = if kazoo { Dialect::Kazoo } else { Dialect::Curator };
            let markers = if kazoo {
                ["__lock__", "__rlock__", "__lock__"]
            } else {
                ["-lock-", "-__READ__", "-__WRIT__"]
            };
            let all: Vec<String> = roles
                .iter()
                .enumerate()
                .map(|(at, role)| format!("{:02}{}{at:010}", 99 - at, markers[*role]))
                .collect();
            let holds: Vec<&String> =
                all.iter().filter(|ours| turn(dialect, &all, ours) == Turn::Ours).collect();
            let shared = |child: &str| dialect.contender(child).expect("in line").role.is_shared();
            prop_assert!(!holds.is_empty());
            prop_assert!(holds.len() == 1 || holds.iter().all(|child| shared(child)));
            for ours in &all {
                if let Turn::After(other) = turn(dialect, &all, ours) {
                    let key = |child: &str| dialect.contender(child).expect("in line").key.to_owned();
                    prop_assert!(key(other) < key(ours));
                }
            }
            let (line, holders) = line(dialect, &all);
            let first: Vec<&str> = line[..holders].iter().map(|holder| holder.child).collect();
            prop_assert_eq!(first, holds);
        }
    }
}
