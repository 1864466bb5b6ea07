-- Removes expired rows from a range of pages: bounded work without an index on `expires_ms`. Skips locked rows. Returns the
-- number of removed rows.
CREATE OR REPLACE FUNCTION @schema@.clean_pages_@table@(from_page bigint, to_page bigint, at_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  removed bigint;
BEGIN
  DELETE FROM @schema@.@table@ t WHERE t.ctid = ANY (ARRAY(
    SELECT o.ctid FROM @schema@.@table@ o
      WHERE o.ctid >= format('(%s,0)', from_page)::tid AND o.ctid < format('(%s,0)', to_page)::tid
        AND o.expires_ms <= at_ms
      FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS removed = ROW_COUNT;
  RETURN removed;
END $$;

-- Cleans random pages. Decisions that insert rows call it.
CREATE OR REPLACE FUNCTION @schema@.clean_@table@(pages int, at_ms bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  all_pages CONSTANT bigint := pg_relation_size('@schema@.@table@') / current_setting('block_size')::bigint;
  page bigint;
  removed bigint := 0;
BEGIN
  FOR i IN 1 .. pages LOOP
    page := floor(random() * all_pages);
    removed := removed + @schema@.clean_pages_@table@(page, page + 1, at_ms);
  END LOOP;
  RETURN removed;
END $$;

-- Cleans pages in order, for a pass over the whole table. `next_page` is null after the last page.
CREATE OR REPLACE FUNCTION @schema@.sweep_@table@(from_page bigint, given_ms bigint, OUT removed bigint,
  OUT next_page bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  all_pages CONSTANT bigint := pg_relation_size('@schema@.@table@') / current_setting('block_size')::bigint;
BEGIN
  next_page := from_page + 32;
  removed := @schema@.clean_pages_@table@(from_page, next_page,
    coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint));
  IF next_page >= all_pages THEN
    next_page := NULL;
  END IF;
END $$;
