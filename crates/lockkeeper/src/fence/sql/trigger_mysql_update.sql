BEGIN
    DECLARE said BIGINT;
    DECLARE why VARCHAR(512);
    -- What is left of a deletion that was not carried out says nothing.
    IF NEW.{by} < 0 AND NEW.{by} = OLD.{by} THEN
        SET NEW.{by} = NULL;
    END IF;
    SET said = COALESCE(ABS(NEW.{by}), NEW.{fence});
    IF said < OLD.{fence} THEN
        SET why = LEFT(CONCAT('token ', said, ' is older than ', OLD.{fence}, ', fence of {name}'), 128);
        SIGNAL SQLSTATE 'LKF01' SET MESSAGE_TEXT = why;
    END IF;
    IF NEW.{by} IS NULL AND OLD.{fence} IS NOT NULL AND (said IS NULL OR said = OLD.{fence}) THEN
        SET why = LEFT('fence of {name}: the write says no token: {hint}', 128);
        SIGNAL SQLSTATE 'LKF02' SET MESSAGE_TEXT = why;
    END IF;
    SET NEW.{fence} = said;
    IF NEW.{by} >= 0 THEN
        SET NEW.{by} = NULL;
    END IF;
END
