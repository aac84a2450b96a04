BEGIN
    DECLARE why VARCHAR(512);
    IF OLD.{fence} IS NOT NULL AND COALESCE(OLD.{by}, 0) >= 0 THEN
        SET why = LEFT('fence of {name}: the deletion says no token: {hint}', 128);
        SIGNAL SQLSTATE 'LKF02' SET MESSAGE_TEXT = why;
    END IF;
END
