-- Nobody but the owner, until it is granted: USAGE on the schema, and EXECUTE on its functions. The tables are for the
-- functions alone.
REVOKE ALL ON SCHEMA @schema@ FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA @schema@ FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;

INSERT INTO @schema@.version (version) VALUES (@version@)
  ON CONFLICT (is_only) DO UPDATE SET version = excluded.version;
