-- The tables of lockkeeper, version 1. Run again it changes nothing.
SELECT pg_advisory_xact_lock(hashtext('lockkeeper init'));
CREATE TABLE IF NOT EXISTS lockkeeper_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL,
    evictions bigint NOT NULL DEFAULT 0
);
-- A row per name in use. `epoch` is never drawn twice: tokens grow by it. Times are µs since 1970.
CREATE TABLE IF NOT EXISTS lockkeeper_names (
    name bytea PRIMARY KEY,
    epoch bigint GENERATED ALWAYS AS IDENTITY,
    version bigint NOT NULL,
    clock bigint,
    token bigint NOT NULL,
    ends bigint NOT NULL,
    state bytea NOT NULL
) WITH (fillfactor = 70);
-- A row per segment of a stock; they stay.
CREATE TABLE IF NOT EXISTS lockkeeper_cells (
    name bytea NOT NULL,
    cell integer NOT NULL,
    version bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (name, cell)
) WITH (fillfactor = 70);
INSERT INTO lockkeeper_meta (version) VALUES (1) ON CONFLICT DO NOTHING;
