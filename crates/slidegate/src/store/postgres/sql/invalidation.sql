-- Versions of the 256 partitions of a table's keys. The last byte of a name is its partition; the first bytes depend on the
-- policy only. Each invalidation (a refund, a reset, a changed limit) draws a new version at random. Partition -1 identifies
-- the table itself: after a crash, which empties this table and the counts, its version is another one.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.invalidation_@table@ (
  partition smallint PRIMARY KEY,
  version bigint NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Invalidates cached denials of these keys on all nodes. A call locks the partitions last and in order, so that calls cannot
-- deadlock.
CREATE OR REPLACE FUNCTION @schema@.invalidate_@table@(keys uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO @schema@.invalidation_@table@ (partition, version)
    SELECT p.partition, floor(random() * 9007199254740992)::bigint
      FROM (SELECT DISTINCT get_byte(uuid_send(k.name), 15)::smallint AS partition FROM unnest(keys) k (name)) p
      ORDER BY p.partition
    ON CONFLICT (partition) DO UPDATE SET version = excluded.version
$$;

-- Returns the versions of all partitions that have one, for nodes that cache denials.
CREATE OR REPLACE FUNCTION @schema@.invalidation_versions_@table@(OUT partitions int[], OUT versions bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  FOR attempt IN 1 .. 2 LOOP
    SELECT coalesce(array_agg(i.partition), '{}'), coalesce(array_agg(i.version), '{}') INTO partitions, versions
      FROM @schema@.invalidation_@table@ i;
    EXIT WHEN -1 = ANY (partitions);
    INSERT INTO @schema@.invalidation_@table@ (partition, version)
      VALUES (-1, floor(random() * 9007199254740992)::bigint)
      ON CONFLICT DO NOTHING;
  END LOOP;
END $$;
