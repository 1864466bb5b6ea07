-- Decides many operations in one statement.
--
-- `keys` are distinct and sorted. The operations on key `k` are `which[from_op[k]]` up to, and without,
-- `which[from_op[k + 1]]`. The results are in the order of `visited`: for each operation, whether it is allowed (null: the
-- record would be too large), and the record before it, which takes `sizes` numbers of `before`.
--
-- The time that decides is `given_ms` or the server's. The moment is up to `grain` later.
--
-- Calls cannot deadlock: existing rows are locked first, in the order of their keys, then new rows are inserted in that
-- order, and only then are rows changed. A call that waits for a change thus waits for a call that does not wait. If another
-- call has inserted a key meanwhile, the statement ends with a serialization failure and the caller sends it again.
--
-- Plans are generic and use the index: planning anew takes longer than a small call, and a plan from the time when the table
-- was empty would read all of it later.
CREATE OR REPLACE FUNCTION @schema@.decide_@table@(keys uuid[], from_op int[], which int[], ops bigint[], op_at int[],
  given_ms bigint, grain bigint, lock_ms int, sync text,
  OUT now_ms bigint, OUT visited int[], OUT allowed boolean[], OUT before bigint[], OUT sizes int[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  existing @schema@.@table@[];
  places tid[];
  existing_keys int[] := '{}';
  e int := 0;
  result record;
  added int := 0;
  invalidated uuid[] := '{}';
BEGIN
  PERFORM set_config('lock_timeout', lock_ms::text, true);
  IF sync IS NOT NULL THEN
    PERFORM set_config('synchronous_commit', sync, true);
  END IF;
  SELECT array_agg(x.existing), array_agg(x.place) INTO existing, places FROM (
    SELECT t AS existing, t.ctid AS place FROM @schema@.@table@ t WHERE t.name = ANY (keys) ORDER BY t.name FOR UPDATE) x;
  -- After the locks, so that a call that waited for one decides by the time at which it got it.
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  visited := '{}';
  allowed := '{}';
  before := '{}';
  sizes := '{}';
  FOR k IN 1 .. cardinality(keys) LOOP
    IF keys[k] = (existing[e + 1]).name THEN
      e := e + 1;
      existing_keys := existing_keys || k;
      CONTINUE;
    END IF;
    result := @schema@.run(NULL, which[from_op[k] : from_op[k + 1] - 1], ops, op_at, now_ms, grain);
    visited := visited || k;
    allowed := allowed || result.allowed;
    before := before || result.before;
    sizes := sizes || result.sizes;
    IF result.is_invalidation THEN
      invalidated := invalidated || keys[k];
    END IF;
    IF result.after <> '{}' THEN
      INSERT INTO @schema@.@table@ (name, expires_ms, state) VALUES (keys[k], result.expires_ms, result.after)
        ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'another call has added the key' USING ERRCODE = 'serialization_failure';
      END IF;
      added := added + 1;
    END IF;
  END LOOP;

  visited := visited || existing_keys;
  FOR i IN 1 .. e LOOP
    result := @schema@.run((existing[i]).state,
      which[from_op[existing_keys[i]] : from_op[existing_keys[i] + 1] - 1], ops, op_at, now_ms, grain);
    allowed := allowed || result.allowed;
    before := before || result.before;
    sizes := sizes || result.sizes;
    IF result.is_invalidation THEN
      invalidated := invalidated || (existing[i]).name;
    END IF;
    IF result.after = '{}' THEN
      DELETE FROM @schema@.@table@ t WHERE t.ctid = places[i];
    ELSIF result.after IS NOT NULL THEN
      UPDATE @schema@.@table@ t SET state = result.after, expires_ms = result.expires_ms WHERE t.ctid = places[i];
    END IF;
  END LOOP;
  -- As many pages are cleaned as rows were inserted, at most four.
  IF added > 0 THEN
    PERFORM @schema@.clean_@table@(least(added, 4), now_ms);
  END IF;
  IF invalidated <> '{}' THEN
    PERFORM @schema@.invalidate_@table@(invalidated);
  END IF;
END $$;

-- Returns the results of checks without spending, locking or writing.
CREATE OR REPLACE FUNCTION @schema@.peek_@table@(keys uuid[], from_op int[], which int[], ops bigint[], op_at int[],
  given_ms bigint, grain bigint,
  OUT now_ms bigint, OUT visited int[], OUT allowed boolean[], OUT before bigint[], OUT sizes int[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  existing record;
  result record;
BEGIN
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  visited := '{}';
  allowed := '{}';
  before := '{}';
  sizes := '{}';
  FOR existing IN
    SELECT a.k::int AS k, t.state FROM unnest(keys) WITH ORDINALITY a (name, k)
      LEFT JOIN @schema@.@table@ t ON t.name = a.name
  LOOP
    result := @schema@.run(existing.state, which[from_op[existing.k] : from_op[existing.k + 1] - 1], ops, op_at, now_ms,
      grain);
    visited := visited || existing.k;
    allowed := allowed || result.allowed;
    before := before || result.before;
    sizes := sizes || result.sizes;
  END LOOP;
END $$;
