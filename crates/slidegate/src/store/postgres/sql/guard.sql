-- Rejects the migration of a schema of a newer version.
DO $$
DECLARE
  found int;
BEGIN
  IF to_regprocedure('@schema@.schema_version()') IS NOT NULL THEN
    found := @schema@.schema_version();
    IF found > @version@ THEN
      RAISE EXCEPTION 'schema @schema@ has version %, but this program supports version @version@', found
        USING ERRCODE = 'SG001';
    END IF;
  END IF;
END $$;

