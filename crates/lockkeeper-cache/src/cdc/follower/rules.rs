//! Which caches changes are for.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexSet;

use crate::cdc::rule::wanted;
use crate::cdc::target::{Load, Target};
use crate::cdc::{Change, Rule, TableName, Wanted};
use crate::hash::hash;
use crate::transaction::Touched;

/// A longer key, in bytes, is sent to no cache: its namespace is cleared. So long ones are no keys that anybody chose, and a server
/// that refuses what is too much for it would refuse it each time.
const LONG_KEY: usize = 64 * 1024;

/// Nor are keys that have more bytes together, for one cache and one batch: they would not be there in time.
const MANY_BYTES: usize = 16 * 1024 * 1024;

/// All rules of a follower, and the caches that they are about.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) targets: Vec<Arc<dyn Target>>,
    rules: Vec<Bound>,
    tables: HashMap<TableName, Vec<usize>>,
}

struct Bound {
    rule: Rule,
    /// Of all targets, this one.
    target: usize,
    load: Option<Load>,
}

/// What is to be done for some changes.
#[derive(Default)]
pub(super) struct Plan {
    /// For each target.
    pub(super) work: Vec<Work>,
    /// What to read again when that is done.
    pub(super) loads: IndexSet<Refresh>,
    /// Tables with rows whose keys are not known, one for each such row.
    pub(super) unknown: Vec<Arc<TableName>>,
    /// Namespaces of nobody, and how many keys.
    pub(super) foreign: Vec<(String, usize)>,
}

/// What is to be done with one cache. Both, where both are asked for: keys that are not there yet are in no list of keys, and a
/// filter is to be told of them.
#[derive(Default)]
pub(super) struct Work {
    pub(super) all: bool,
    pub(super) keys: IndexSet<Touched>,
    /// How long the keys are together.
    bytes: usize,
}

/// A key to read again: by which rule, and its text.
pub(super) type Refresh = (usize, String);

impl Rules {
    /// Adds a cache, if it is not there yet. Its place.
    pub(super) fn cache(&mut self, target: Arc<dyn Target>) -> usize {
        match self.targets.iter().position(|there| there.id() == target.id()) {
            Some(at) => at,
            None => {
                self.targets.push(target);
                self.targets.len() - 1
            }
        }
    }

    pub(super) fn add(&mut self, rule: Rule, target: Arc<dyn Target>, load: Option<Load>) {
        let target = self.cache(target);
        let of_table = self.tables.entry(rule.table().clone()).or_default();
        of_table.push(self.rules.len());
        self.rules.push(Bound { rule, target, load });
    }

    pub(super) fn wanted(&self) -> Wanted {
        wanted(self.rules.iter().map(|bound| &bound.rule))
    }

    /// Another number for other tables, templates and namespaces, in whatever order they are given. Part of what is stored: with
    /// another one, every follower begins anew.
    pub(super) fn fingerprint(&self) -> u64 {
        let rules = self.rules.iter().map(|Bound { rule, target, .. }| {
            let namespace = self.targets[*target].namespace();
            format!("{}\0{}\0{namespace}", rule.table(), rule.template())
        });
        let caches = self.targets.iter().map(|target| format!("\0{}", target.namespace()));
        let mut lines: Vec<String> = rules.chain(caches).collect();
        lines.sort();
        lines.dedup();
        hash(lines.join("\n").as_bytes())
    }

    /// How the key of that rule is read again.
    pub(super) fn load(&self, rule: usize) -> Option<&Load> {
        self.rules.get(rule)?.load.as_ref()
    }

    /// What is to be done for these.
    pub(super) fn plan(&self, changes: Vec<Change>) -> Plan {
        let mut plan = Plan::default();
        plan.work.resize_with(self.targets.len(), Work::default);
        for change in changes {
            match change {
                Change::Row { table, old, new } => {
                    for at in self.of(&table) {
                        let bound = &self.rules[*at];
                        let target = bound.target;
                        match bound.rule.keys(old.as_ref(), new.as_ref()) {
                            Ok(keys) => {
                                for key in keys.into_iter().flatten() {
                                    self.touch(&mut plan, target, Touched { key, version: 0 }, *at);
                                }
                            }
                            Err(_) => {
                                plan.work[target].all = true;
                                plan.unknown.push(Arc::clone(&table));
                            }
                        }
                    }
                }
                Change::Table { table, why } => {
                    tracing::debug!(%table, why, "its namespaces are cleared");
                    for at in self.of(&table) {
                        plan.work[self.rules[*at].target].all = true;
                    }
                }
                Change::Everything { why } => {
                    tracing::debug!(why, "all namespaces are cleared");
                    plan.work.iter_mut().for_each(|work| work.all = true);
                }
                Change::Keys { namespace, touched } => self.named(&mut plan, namespace, touched),
            }
        }
        plan
    }

    fn of(&self, table: &TableName) -> &[usize] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }

    /// Keys that a writer has named.
    fn named(&self, plan: &mut Plan, namespace: String, touched: Vec<Touched>) {
        let mut found = false;
        for (target, cache) in self.targets.iter().enumerate() {
            if cache.namespace() == namespace {
                found = true;
                for touched in &touched {
                    self.touch(plan, target, touched.clone(), usize::MAX);
                }
            }
        }
        if !found {
            plan.foreign.push((namespace, touched.len()));
        }
    }

    fn touch(&self, plan: &mut Plan, target: usize, touched: Touched, rule: usize) {
        // The cache refuses longer ones, so it does not have them.
        let (length, work) = (touched.key.len(), &mut plan.work[target]);
        if length > self.targets[target].max_key() {
            return;
        }
        if length > LONG_KEY || length > MANY_BYTES.saturating_sub(work.bytes) {
            let namespace = self.targets[target].namespace();
            tracing::debug!(namespace, length, "keys are too long: it is cleared");
            work.all = true;
            return;
        }
        if self.load(rule).is_some() {
            plan.loads.insert((rule, touched.key.clone()));
        }
        if work.keys.insert(touched) {
            work.bytes += length;
        }
    }
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.work.iter().all(|work| !work.all && work.keys.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdc::target;
    use crate::cdc::{Cell, Row};
    use crate::{Cache, Error, Loaded, Memory};

    fn cache(namespace: &str) -> Cache<u64, u64> {
        let builder = Cache::builder(Memory::new()).namespace(namespace).max_key(5);
        builder.build(async |key: u64| Ok::<_, Error>(Loaded::found(key))).unwrap()
    }

    fn rules(order: &[usize]) -> Rules {
        let (users, orders) = (cache("user"), cache("order"));
        let mut rules = Rules::default();
        for at in order {
            let rule = |table, template| Rule::new(table, template).unwrap();
            match at {
                0 => rules.add(rule("s.users", "{id}"), Arc::new(users.clone()), None),
                1 => rules.add(rule("s.users", "m{mail}"), Arc::new(users.clone()), None),
                2 => {
                    let load = target::load(&orders);
                    let rule = rule("s.orders", "{id}");
                    rules.add(rule, Arc::new(orders.clone()), Some(load));
                }
                _ => drop(rules.cache(Arc::new(users.clone()))),
            }
        }
        rules
    }

    fn table(name: &str) -> Arc<TableName> {
        Arc::new(TableName::new("s", name))
    }

    fn row(name: &str, cells: &[(&str, &str)]) -> Change {
        let columns: Arc<[Arc<str>]> = cells.iter().map(|(name, _)| Arc::from(*name)).collect();
        let cells: Vec<Cell> = cells.iter().map(|(_, text)| Cell::Text((*text).into())).collect();
        Change::Row { table: table(name), old: None, new: Some(Row::new(columns, cells)) }
    }

    fn work(plan: &Plan) -> Vec<(bool, Vec<&str>)> {
        let each = plan.work.iter();
        each.map(|work| (work.all, work.keys.iter().map(|key| key.key.as_str()).collect()))
            .collect()
    }

    #[test]
    fn every_rule_of_a_table_has_its_keys_once() {
        let rules = rules(&[0, 1, 2]);
        let plan = rules.plan(vec![
            row("users", &[("id", "1"), ("mail", "a")]),
            row("users", &[("id", "1"), ("mail", "b")]),
            row("orders", &[("id", "3")]),
            row("orders", &[("id", "3")]),
            row("orders", &[("id", "123456")]),
            row("others", &[("id", "4")]),
        ]);
        assert_eq!(work(&plan), [(false, vec!["1", "ma", "mb"]), (false, vec!["3"])]);
        assert_eq!(plan.loads.iter().collect::<Vec<_>>(), [&(2, "3".to_owned())]);
        assert!(plan.unknown.is_empty() && plan.foreign.is_empty() && !plan.is_empty());
        assert!(rules.plan(vec![row("others", &[])]).is_empty());
    }

    #[test]
    fn what_is_not_known_is_the_whole_namespace() {
        let rules = rules(&[0, 1, 2]);
        let plan = rules.plan(vec![row("users", &[("id", "1")])]);
        assert_eq!(work(&plan), [(true, vec!["1"]), (false, vec![])]);
        assert_eq!(plan.unknown.len(), 1);
        let truncated = Change::Table { table: table("orders"), why: "TRUNCATE" };
        assert_eq!(work(&rules.plan(vec![truncated])), [(false, vec![]), (true, vec![])]);
        let everything = Change::Everything { why: "a test" };
        assert_eq!(work(&rules.plan(vec![everything])), [(true, vec![]), (true, vec![])]);
    }

    #[test]
    fn enormous_keys_are_the_whole_namespace() {
        let builder = Cache::builder(Memory::new()).namespace("page").max_key(usize::MAX);
        let pages = builder.build(async |key: String| Ok::<_, Error>(Loaded::found(key))).unwrap();
        let mut rules = Rules::default();
        let load = target::load(&pages);
        rules.add(Rule::new("s.pages", "{url}").unwrap(), Arc::new(pages), Some(load));
        let page = |length: usize, number: usize| {
            row("pages", &[("url", &format!("{}{number:04}", "x".repeat(length - 4)))])
        };
        let lengths = |plan: &Plan| {
            let work = &plan.work[0];
            (work.all, work.keys.iter().map(|key| key.key.len()).collect::<Vec<_>>())
        };
        let plan = rules.plan(vec![page(LONG_KEY, 1), page(LONG_KEY, 1), page(4, 7)]);
        assert_eq!(lengths(&plan), (false, vec![LONG_KEY, 4]));
        let plan = rules.plan(vec![page(4, 7), page(LONG_KEY + 1, 1), page(4, 8)]);
        assert_eq!(lengths(&plan), (true, vec![4, 4]));
        assert_eq!(plan.loads.len(), 2);
        // Nor are many long ones sent at once.
        let many = MANY_BYTES / LONG_KEY;
        let all =
            |many: usize| rules.plan((0..many).map(|number| page(LONG_KEY, number)).collect());
        assert_eq!(lengths(&all(many)), (false, vec![LONG_KEY; many]));
        assert_eq!(lengths(&all(many + 2)), (true, vec![LONG_KEY; many]));
    }

    #[test]
    fn keys_that_writers_name_are_for_their_namespace() {
        let rules = rules(&[0, 2]);
        let named = |namespace: &str| {
            let touched = ["1", "2"].map(|key| Touched { key: key.into(), version: 5 });
            Change::Keys { namespace: namespace.into(), touched: touched.to_vec() }
        };
        let plan = rules.plan(vec![named("order"), named("other")]);
        assert_eq!(work(&plan), [(false, vec![]), (false, vec!["1", "2"])]);
        assert_eq!(plan.work[1].keys[0].version, 5);
        assert_eq!(plan.foreign, [("other".to_owned(), 2)]);
        assert!(plan.loads.is_empty(), "no rule says so");
    }

    #[test]
    fn the_order_of_rules_does_not_matter_and_everything_else_does() {
        let print = |order: &[usize]| rules(order).fingerprint();
        assert_eq!(print(&[0, 1, 2]), print(&[2, 0, 1]));
        assert_eq!(print(&[0, 1, 2]), print(&[2, 0, 1, 3, 0]));
        assert_ne!(print(&[0, 1, 2]), print(&[0, 1]));
        assert_ne!(print(&[0]), print(&[1]));
        assert_ne!(print(&[0]), print(&[3]));
        // Do not change this.
        assert_eq!(print(&[0]), 0x26f0_62c2_87d6_782f);
    }
}
