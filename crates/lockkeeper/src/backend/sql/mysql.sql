-- The tables of lockkeeper, version 1. Run again it changes nothing.
CREATE TABLE IF NOT EXISTS lockkeeper_meta (
    one BOOLEAN NOT NULL PRIMARY KEY DEFAULT TRUE,
    version BIGINT NOT NULL,
    evictions BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
-- A row per name in use. `epoch` is never drawn twice: tokens grow by it. Times are µs since 1970.
CREATE TABLE IF NOT EXISTS lockkeeper_names (
    name VARBINARY(510) NOT NULL PRIMARY KEY,
    epoch BIGINT NOT NULL AUTO_INCREMENT UNIQUE,
    version BIGINT NOT NULL,
    clock BIGINT,
    token BIGINT NOT NULL,
    ends BIGINT NOT NULL,
    state LONGBLOB NOT NULL
) ENGINE = InnoDB;
-- 1024 rows that never change: one is locked by an insert above for as long as it takes.
CREATE TABLE IF NOT EXISTS lockkeeper_turns (
    turn INT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;
INSERT IGNORE INTO lockkeeper_turns
    WITH four AS (SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3)
    SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n + 256 * e.n
    FROM four AS a, four AS b, four AS c, four AS d, four AS e;
-- A row per name that was locked in a transaction with mode=session; deleted some day.
CREATE TABLE IF NOT EXISTS lockkeeper_rows (
    name VARBINARY(510) NOT NULL PRIMARY KEY,
    made DATETIME NOT NULL,
    KEY (made)
) ENGINE = InnoDB;
-- A row per segment of a stock; they stay.
CREATE TABLE IF NOT EXISTS lockkeeper_cells (
    name VARBINARY(510) NOT NULL,
    cell INT NOT NULL,
    version BIGINT NOT NULL,
    value LONGBLOB NOT NULL,
    PRIMARY KEY (name, cell)
) ENGINE = InnoDB;
INSERT IGNORE INTO lockkeeper_meta (one, version) VALUES (TRUE, 1);
