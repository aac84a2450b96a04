BEGIN
    SET NEW.{fence} = COALESCE(ABS(NEW.{by}), NEW.{fence});
    SET NEW.{by} = NULL;
END
