-- Refuses late and forgetful writers. One transaction; run again it changes nothing.
-- Who waits for the table keeps everybody else waiting behind.
SET LOCAL lock_timeout = '5s';
SELECT pg_advisory_xact_lock(hashtext('lockkeeper fence'));
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {fence} bigint, ADD COLUMN IF NOT EXISTS {by} bigint;
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $lockkeeper$
DECLARE
    said bigint;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.{fence} IS NOT NULL AND COALESCE(OLD.{by}, 0) >= 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'LKF02', MESSAGE =
                'fence of {name}: the deletion says no token: {hint}';
        END IF;
        RETURN OLD;
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.{fence} := COALESCE(abs(NEW.{by}), NEW.{fence});
        NEW.{by} := NULL;
        RETURN NEW;
    END IF;
    -- What is left of a deletion that was not carried out says nothing.
    IF NEW.{by} < 0 AND NEW.{by} = OLD.{by} THEN
        NEW.{by} := NULL;
    END IF;
    said := COALESCE(abs(NEW.{by}), NEW.{fence});
    IF said < OLD.{fence} THEN
        RAISE EXCEPTION USING ERRCODE = 'LKF01', MESSAGE =
            format('token %s is older than %s, fence of {name}', said, OLD.{fence});
    END IF;
    IF NEW.{by} IS NULL AND OLD.{fence} IS NOT NULL AND (said IS NULL OR said = OLD.{fence}) THEN
        RAISE EXCEPTION USING ERRCODE = 'LKF02', MESSAGE =
            'fence of {name}: the write says no token: {hint}';
    END IF;
    NEW.{fence} := said;
    IF NEW.{by} >= 0 THEN
        NEW.{by} := NULL;
    END IF;
    RETURN NEW;
END
$lockkeeper$;
DROP TRIGGER IF EXISTS lockkeeper_fence ON {table};
-- Of times when there was no trigger to empty it.
UPDATE {table} SET {by} = NULL WHERE {by} IS NOT NULL;
CREATE TRIGGER lockkeeper_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {function}();
