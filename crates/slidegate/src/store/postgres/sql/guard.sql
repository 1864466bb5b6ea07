-- What a newer version has made is left alone.
DO $$
DECLARE
  found int;
BEGIN
  IF to_regprocedure('@schema@.schema_version()') IS NOT NULL THEN
    found := @schema@.schema_version();
    IF found > @version@ THEN
      RAISE EXCEPTION 'schema @schema@ is of version %, and this is made for @version@', found USING ERRCODE = 'SG001';
    END IF;
  END IF;
END $$;

