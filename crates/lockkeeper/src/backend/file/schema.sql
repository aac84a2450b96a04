-- The state of every name in use, and the last token that was issued.
-- names.state: JSON of model::State; a name that is not in use has no row.
-- meta has one row. boot: the kernel's boot id, to tell a reboot.
CREATE TABLE names (name TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), token INTEGER NOT NULL, boot TEXT NOT NULL);
INSERT INTO meta VALUES (1, 0, '');
PRAGMA user_version = 1;
