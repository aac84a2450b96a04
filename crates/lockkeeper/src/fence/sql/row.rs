//! Which row is written, and what to it.

use std::fmt;

use sqlx::{Encode, QueryBuilder, Type};

use super::{Error, Result, System, Table, identifier, quote};

/// Pushes a value or an expression. Called again for every statement that needs it.
pub(super) type Push<DB> = Box<dyn Fn(&mut QueryBuilder<DB>) + Send + Sync>;

/// A value that can be sent as often as needed.
pub trait Value<DB: System>:
    for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync + 'static
{
}

impl<DB: System, T> Value<DB> for T where
    T: for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync + 'static
{
}

pub(super) fn bind<DB: System>(value: impl Value<DB>) -> Push<DB> {
    Box::new(move |sql| {
        sql.push_bind(value.clone());
    })
}

/// A row, and what is to be set in it.
pub(super) struct Row<'t, DB: System> {
    pub(super) table: &'t Table<DB>,
    keys: Vec<(String, Push<DB>)>,
    pub(super) sets: Vec<(String, Push<DB>)>,
    /// The key, as errors show it.
    shown: Vec<String>,
    /// The first name that cannot be used.
    invalid: Option<Error>,
}

impl<'t, DB: System> Row<'t, DB> {
    pub(super) fn new(table: &'t Table<DB>) -> Self {
        let (keys, sets, shown, invalid) = Default::default();
        Self { table, keys, sets, shown, invalid }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(fine) => Some(fine),
            Err(error) => {
                self.invalid.get_or_insert(error);
                None
            }
        }
    }

    pub(super) fn key(&mut self, column: &str, value: impl Value<DB> + fmt::Debug) {
        if let Some(name) = self.note(identifier(column)) {
            self.shown.push(format!("{name}={value:?}"));
            self.keys.push((name, bind(value)));
        }
    }

    pub(super) fn set(&mut self, column: &str, push: Push<DB>) {
        if self.table.owns(column) {
            return self.refuse(column);
        }
        if let Some(name) = self.note(identifier(column)) {
            self.sets.push((name, push));
        }
    }

    /// Notes that this column is not for others to set.
    pub(super) fn refuse(&mut self, column: &str) {
        self.note::<()>(Err(Error::Invalid(format!("{column} is the fence's own: it sets it"))));
    }

    pub(super) fn resource(&self) -> String {
        match self.shown.as_slice() {
            [] => self.table.to_string(),
            keys => format!("{}[{}]", self.table, keys.join(", ")),
        }
    }

    /// Whether all of it makes sense.
    pub(super) fn check(&mut self, needs_key: bool) -> Result<()> {
        match self.invalid.take() {
            Some(invalid) => Err(invalid),
            None if needs_key && self.keys.is_empty() => {
                let resource = self.resource();
                Err(Error::Invalid(format!("say which row of {resource}: key(…)")))
            }
            None => Ok(()),
        }
    }

    /// What is to be set, each with a comma after it.
    pub(super) fn push_sets(&self, sql: &mut QueryBuilder<DB>) {
        for (column, push) in &self.sets {
            sql.push(format_args!("{} = ", quote::<DB>(column)));
            push(sql);
            sql.push(", ");
        }
    }

    /// `WHERE` the key is this one.
    pub(super) fn push_key(&self, sql: &mut QueryBuilder<DB>) {
        for (at, (column, push)) in self.keys.iter().enumerate() {
            let before = if at == 0 { " WHERE " } else { " AND " };
            sql.push(format_args!("{before}{} = ", quote::<DB>(column)));
            push(sql);
        }
    }
}
