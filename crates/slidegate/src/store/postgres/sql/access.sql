-- Only the owner has permissions until they are granted: USAGE on the schema and EXECUTE on its functions. Only the
-- functions access the tables.
REVOKE ALL ON SCHEMA @schema@ FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA @schema@ FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;

INSERT INTO @schema@.version (version) VALUES (@version@)
  ON CONFLICT (is_only) DO UPDATE SET version = excluded.version;
