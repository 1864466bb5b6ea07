-- Removes what is over from the pages of a range: bounded work, and no index that would have to be kept. Rows that
-- somebody holds are left alone. Says how many went.
CREATE OR REPLACE FUNCTION @schema@.clean_pages_@table@(from_page bigint, to_page bigint, at_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint;
BEGIN
  DELETE FROM @schema@.@table@ t WHERE t.ctid = ANY (ARRAY(
    SELECT o.ctid FROM @schema@.@table@ o
      WHERE o.ctid >= format('(%s,0)', from_page)::tid AND o.ctid < format('(%s,0)', to_page)::tid
        AND o.expires_ms <= at_ms
      FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- Some pages taken at random: what whoever adds rows does in passing.
CREATE OR REPLACE FUNCTION @schema@.clean_@table@(pages int, at_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  all_pages CONSTANT bigint := pg_relation_size('@schema@.@table@') / current_setting('block_size')::bigint;
  page bigint;
  gone bigint := 0;
BEGIN
  FOR i IN 1 .. pages LOOP
    page := floor(random() * all_pages);
    gone := gone + @schema@.clean_pages_@table@(page, page + 1, at_ms);
  END LOOP;
  RETURN gone;
END $$;

-- Some pages in order, for those who go through all of them. `next_page` is null after the last.
CREATE OR REPLACE FUNCTION @schema@.sweep_@table@(from_page bigint, given_ms bigint, OUT gone bigint,
  OUT next_page bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  all_pages CONSTANT bigint := pg_relation_size('@schema@.@table@') / current_setting('block_size')::bigint;
BEGIN
  next_page := from_page + 32;
  gone := @schema@.clean_pages_@table@(from_page, next_page,
    coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint));
  IF next_page >= all_pages THEN
    next_page := NULL;
  END IF;
END $$;
