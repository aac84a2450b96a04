//! What a statement changes that is in the log as text.
//!
//! Nothing is guessed: what is not known to be harmless, and not about certain tables only, may have changed anything.

/// What comes of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No rows are changed by it.
    Nothing,
    /// It ends a transaction.
    End,
    /// It ends one that was prepared before.
    XaCommit,
    /// The same, and nothing of it is left.
    XaRollback,
    /// Any rows of tables that it mentions. More of them than it changes.
    Mentioned(Vec<Mention>),
    /// Any rows of a schema.
    Schema(String),
    /// Any rows of any table.
    Everything(&'static str),
}

/// A name, and the schema if one is in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) schema: Option<String>,
    pub(super) name: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// Without quotes.
    Word(String),
    /// In quotes that may be those of a name.
    Quoted(String),
    Other(char),
}

impl Token {
    fn is(&self, word: &str) -> bool {
        matches!(self, Self::Word(text) if text.eq_ignore_ascii_case(word))
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Word(text) | Self::Quoted(text) => Some(text),
            Self::Other(_) => None,
        }
    }
}

/// `plain_backslashes`: they are nothing special in texts.
pub(super) fn effect(sql: &[u8], plain_backslashes: bool) -> Effect {
    let Ok(sql) = std::str::from_utf8(sql) else {
        return Effect::Everything("a statement is not in UTF-8");
    };
    // Nearly all are one of these, and none of them needs more.
    match sql {
        "BEGIN" => return Effect::Nothing,
        "COMMIT" | "ROLLBACK" => return Effect::End,
        _ => {}
    }
    let tokens = tokens(sql, plain_backslashes);
    let words: Vec<_> = tokens
        .iter()
        .map_while(|token| match token {
            Token::Word(word) => Some(word.to_ascii_uppercase()),
            _ => None,
        })
        .take(6)
        .collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    match word(0) {
        "" if tokens.is_empty() => Effect::Nothing,
        "COMMIT" => Effect::End,
        "ROLLBACK" if !words.iter().any(|word| word == "TO") => Effect::End,
        "BEGIN" | "START" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" => Effect::Nothing,
        "XA" => match word(1) {
            "COMMIT" => Effect::XaCommit,
            "ROLLBACK" => Effect::XaRollback,
            _ => Effect::Nothing,
        },
        "TRUNCATE" | "REPAIR" => Effect::Mentioned(mentions(&tokens)),
        "DROP" | "ALTER" | "RENAME" | "CREATE" => definition(word(0), &tokens),
        "GRANT" | "REVOKE" | "FLUSH" | "OPTIMIZE" | "CHECK" | "INSTALL" | "UNINSTALL" | "RESET"
        | "KILL" => Effect::Nothing,
        "ANALYZE" if is_about_tables(&words) => Effect::Nothing,
        "SET" if word(1) != "STATEMENT" => Effect::Nothing,
        "INSERT" | "UPDATE" | "DELETE" | "REPLACE" | "LOAD" | "WITH" | "CALL" | "SELECT"
        | "ANALYZE" => {
            // Triggers, views and cascades change tables that it does not mention.
            Effect::Everything(
                "rows were changed by a statement in the log (binlog_format is not ROW)",
            )
        }
        _ => Effect::Everything("a statement in the log is not known"),
    }
}

/// An `ANALYZE` of tables; any other carries out the statement that follows it.
fn is_about_tables(words: &[String]) -> bool {
    let mut rest = words.iter().skip(1).map(String::as_str);
    let what = rest.find(|word| !matches!(*word, "LOCAL" | "NO_WRITE_TO_BINLOG"));
    matches!(what, Some("TABLE" | "TABLES"))
}

/// Of what kind the first thing is that is made or changed.
fn definition(verb: &str, tokens: &[Token]) -> Effect {
    const KINDS: [&str; 18] = [
        "TABLE",
        "TABLES",
        "DATABASE",
        "SCHEMA",
        "INDEX",
        "VIEW",
        "USER",
        "ROLE",
        "FUNCTION",
        "PROCEDURE",
        "TRIGGER",
        "EVENT",
        "SERVER",
        "SEQUENCE",
        "PACKAGE",
        "TABLESPACE",
        "LOGFILE",
        "KEY",
    ];
    let kind = |token: &Token| KINDS.into_iter().find(|kind| token.is(kind));
    let Some((at, kind)) =
        tokens.iter().enumerate().find_map(|(at, token)| Some((at, kind(token)?)))
    else {
        return Effect::Everything("a statement in the log is not known");
    };
    let before = |word: &str| tokens[..at].iter().any(|token| token.is(word));
    match (verb, kind) {
        // Of one session, and gone with it.
        (_, "TABLE" | "TABLES") if before("TEMPORARY") => Effect::Nothing,
        (_, "TABLE" | "TABLES" | "SEQUENCE") => Effect::Mentioned(mentions(tokens)),
        ("DROP", "DATABASE" | "SCHEMA") => schema(tokens),
        ("CREATE", "DATABASE" | "SCHEMA") if before("REPLACE") => schema(tokens),
        _ => Effect::Nothing,
    }
}

fn schema(tokens: &[Token]) -> Effect {
    match tokens.iter().rfind(|token| token.name().is_some()).and_then(Token::name) {
        // What may follow a name.
        _ if tokens
            .iter()
            .any(|token| token.is("CHARACTER") || token.is("COLLATE") || token.is("COMMENT")) =>
        {
            Effect::Everything("a database was replaced")
        }
        Some(name) => Effect::Schema(name.to_owned()),
        None => Effect::Everything("a database was dropped"),
    }
}

/// Every name, whatever it is the name of.
fn mentions(tokens: &[Token]) -> Vec<Mention> {
    let mut all = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(name) = token.name() else { continue };
        let dotted = at >= 2 && tokens[at - 1] == Token::Other('.');
        let schema = dotted.then(|| tokens[at - 2].name().map(str::to_owned)).flatten();
        all.push(Mention { schema, name: name.to_owned() });
    }
    all
}

/// Words and names; of texts and numbers nothing that could be taken for them, except that what is in double quotes may be either.
/// What is in a comment that is carried out by some servers is taken for carried out.
fn tokens(sql: &str, plain_backslashes: bool) -> Vec<Token> {
    let (mut all, mut chars) = (Vec::new(), sql.char_indices().peekable());
    while let Some((at, char)) = chars.next() {
        let rest = &sql[at..];
        // How many bytes after the first char belong to it.
        let skip = match char {
            '\'' | '"' | '`' => {
                let escapes = !plain_backslashes && char != '`';
                let (text, length) = quoted(rest, char, escapes);
                if char != '\'' {
                    all.push(Token::Quoted(text));
                }
                length
            }
            '#' => line(rest),
            '-' if rest.starts_with("--")
                && rest[2..].chars().next().is_none_or(char::is_whitespace) =>
            {
                line(rest)
            }
            '/' if rest.starts_with("/*!") || rest.starts_with("/*M!") => {
                let head = if rest.starts_with("/*!") { 3 } else { 4 };
                let digits = rest[head..].bytes().take_while(u8::is_ascii_digit).count();
                head + digits
            }
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            // The end of one of those.
            '*' if rest.starts_with("*/") => 2,
            _ if is_name(char) => {
                let length = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
                all.push(Token::Word(rest[..length].to_owned()));
                length
            }
            _ => {
                if !char.is_whitespace() && char != ';' {
                    all.push(Token::Other(char));
                }
                char.len_utf8()
            }
        };
        while chars.next_if(|(next, _)| *next < at + skip).is_some() {}
    }
    all
}

fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '$' || !char.is_ascii()
}

fn line(rest: &str) -> usize {
    rest.find('\n').unwrap_or(rest.len())
}

/// What is between quotes, and how long it is with them.
fn quoted(rest: &str, quote: char, escapes: bool) -> (String, usize) {
    let (mut text, mut chars) = (String::new(), rest.char_indices().skip(1).peekable());
    while let Some((at, char)) = chars.next() {
        if char == '\\' && escapes {
            text.extend(chars.next().map(|(_, char)| char));
        } else if char == quote {
            if chars.next_if(|(_, next)| *next == quote).is_none() {
                return (text, at + 1);
            }
            text.push(quote);
        } else {
            text.push(char);
        }
    }
    (text, rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(sql: &str) -> Effect {
        effect(sql.as_bytes(), false)
    }

    fn mentions(sql: &str, table: &str) -> bool {
        let (schema, name) = table.split_once('.').unwrap_or(("", table));
        match plain(sql) {
            Effect::Mentioned(all) => all.iter().any(|mention| {
                mention.name == name
                    && (schema.is_empty() || mention.schema.as_deref() == Some(schema))
            }),
            _ => false,
        }
    }

    #[test]
    fn statements_about_tables_mention_them() {
        for sql in [
            "TRUNCATE t",
            "truncate table `t`",
            "/* why */ TRUNCATE\n-- really\nTABLE t # yes",
            "DROP TABLE IF EXISTS `a`,`t` /* generated by server */",
            "DROP TABLE `here`.`t`",
            "RENAME TABLE a TO t",
            "RENAME TABLE t TO a, a TO b",
            "ALTER TABLE t ADD COLUMN x INT DEFAULT 'it''s'",
            "ALTER IGNORE TABLE a RENAME TO t",
            "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE t",
            "CREATE OR REPLACE TABLE t (a INT)",
            "CREATE TABLE IF NOT EXISTS t SELECT 1",
            "/*!40000 ALTER TABLE `t` DISABLE KEYS */",
            "/*M!100000 DROP TABLE t */",
            "ALTER TABLE a COMMENT 'don\\'t', RENAME t",
            "DROP TABLE \"t\"",
        ] {
            assert!(mentions(sql, "t"), "{sql}: {:?}", plain(sql));
        }
        assert!(mentions("DROP TABLE `here`.`t`", "here.t"));
    }

    #[test]
    fn what_is_in_texts_and_comments_is_no_name() {
        for sql in ["ALTER TABLE a COMMENT 't'", "TRUNCATE a /* t */", "TRUNCATE a -- t\n"] {
            assert!(!mentions(sql, "t"), "{sql}");
        }
        // Where a backslash is nothing special, the text ends before the name.
        let sql = r"ALTER TABLE a COMMENT '\', RENAME t, COMMENT '\'";
        let is = |plain| match effect(sql.as_bytes(), plain) {
            Effect::Mentioned(all) => all.iter().any(|mention| mention.name == "t"),
            _ => false,
        };
        assert!(is(true) && !is(false));
    }

    #[test]
    fn statements_that_change_no_rows_are_harmless() {
        for sql in [
            "BEGIN",
            "START TRANSACTION",
            "SAVEPOINT `a`",
            "ROLLBACK TO `a`",
            "XA START X'61',X'',1",
            "CREATE USER a",
            "GRANT ALL ON *.* TO a",
            "FLUSH TABLES",
            "ANALYZE TABLE t",
            "analyze local table t",
            "ANALYZE NO_WRITE_TO_BINLOG TABLES a, t PERSISTENT FOR ALL",
            "SET PASSWORD FOR a = ''",
            "CREATE INDEX i ON t (a)",
            "CREATE DEFINER=`root`@`%` TRIGGER x BEFORE INSERT ON t FOR EACH ROW DELETE FROM t",
            "CREATE DATABASE x",
            "DROP VIEW t",
            "CREATE TEMPORARY TABLE t (a INT)",
            "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`",
            "# Dummy event",
            "",
        ] {
            assert_eq!(plain(sql), Effect::Nothing, "{sql}");
        }
    }

    #[test]
    fn what_may_change_anything_is_everything() {
        for sql in [
            "INSERT INTO t VALUES (1)",
            "update a set b = 1",
            "WITH x AS (SELECT 1) DELETE FROM a",
            "SELECT f()",
            "SET STATEMENT max_statement_time=1 FOR DELETE FROM t",
            "CALL p()",
            "ANALYZE UPDATE t SET a = 1",
            "analyze format=json DELETE FROM t",
            "ANALYZE",
            "ANALYZE INSERT INTO `table` SELECT 1",
            "HANDLER t OPEN",
            "(SELECT 1)",
            "CREATE SOMETHING new",
        ] {
            assert!(matches!(plain(sql), Effect::Everything(_)), "{sql}: {:?}", plain(sql));
        }
        assert!(matches!(effect(b"DROP TABLE \xff", false), Effect::Everything(_)));
    }

    #[test]
    fn ends_of_transactions_are_seen() {
        assert_eq!(plain("COMMIT"), Effect::End);
        assert_eq!(plain("rollback /* all */"), Effect::End);
        assert_eq!(plain("XA COMMIT X'61',X'',1"), Effect::XaCommit);
        assert_eq!(plain("XA ROLLBACK X'61',X'',1"), Effect::XaRollback);
        assert_eq!(plain("DROP DATABASE IF EXISTS `here`"), Effect::Schema("here".into()));
        assert_eq!(plain("CREATE OR REPLACE SCHEMA here"), Effect::Schema("here".into()));
        assert_eq!(
            plain("CREATE OR REPLACE SCHEMA here CHARACTER SET latin1"),
            Effect::Everything("a database was replaced")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_much(sql in "\\PC*|[-/*!'\"`\\\\ a-z#\n]*", plain: bool) {
            effect(sql.as_bytes(), plain);
        }
    }
}
