-- Decides many operations in one statement.
--
-- `keys` are different and in order. The operations on the k-th are those of `which` from `from_op[k]` on, before
-- `from_op[k + 1]`. Answers key by key in the order of `visited`: whether each operation is allowed (null: no room),
-- and what it was decided from, as many numbers of `before` as `sizes` says.
--
-- No two calls ever wait for each other: first all rows that are there are locked, in the order of their keys; then new
-- ones are added, in that order; and only then is anything changed, so that whoever waits for a change waits for
-- somebody who does not wait. A row that another call has added meanwhile ends the statement with a serialization
-- failure, and the caller sends it again.
--
-- Plans are made once and by the index: one that is made anew for each small call takes longer than the call, and one
-- that was made while the table was empty would read all of it when it no longer is.
CREATE OR REPLACE FUNCTION @schema@.decide_@table@(keys uuid[], from_op int[], which int[], ops bigint[], op_at int[],
  given_ms bigint, lock_ms int, sync text,
  OUT now_ms bigint, OUT visited int[], OUT allowed boolean[], OUT before bigint[], OUT sizes int[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  -- Given time is exact; the server's is rounded down to a millisecond.
  grain CONSTANT bigint := CASE WHEN given_ms IS NULL THEN 1 ELSE 0 END;
  held @schema@.@table@[];
  places tid[];
  held_keys int[] := '{}';
  h int := 0;
  done record;
  added int := 0;
  told uuid[] := '{}';
BEGIN
  PERFORM set_config('lock_timeout', lock_ms::text, true);
  IF sync IS NOT NULL THEN
    PERFORM set_config('synchronous_commit', sync, true);
  END IF;
  SELECT array_agg(x.held), array_agg(x.place) INTO held, places FROM (
    SELECT t AS held, t.ctid AS place FROM @schema@.@table@ t WHERE t.name = ANY (keys) ORDER BY t.name FOR UPDATE) x;
  -- After the locks: whoever waited for one decides by the time at which it got it.
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  visited := '{}';
  allowed := '{}';
  before := '{}';
  sizes := '{}';
  FOR k IN 1 .. cardinality(keys) LOOP
    IF keys[k] = (held[h + 1]).name THEN
      h := h + 1;
      held_keys := held_keys || k;
      CONTINUE;
    END IF;
    done := @schema@.run(NULL, which[from_op[k] : from_op[k + 1] - 1], ops, op_at, now_ms, grain);
    visited := visited || k;
    allowed := allowed || done.allowed;
    before := before || done.before;
    sizes := sizes || done.sizes;
    IF done.is_news THEN
      told := told || keys[k];
    END IF;
    IF done.after <> '{}' THEN
      INSERT INTO @schema@.@table@ (name, expires_ms, state) VALUES (keys[k], done.expires_ms, done.after)
        ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'another call has added the key' USING ERRCODE = 'serialization_failure';
      END IF;
      added := added + 1;
    END IF;
  END LOOP;

  visited := visited || held_keys;
  FOR i IN 1 .. h LOOP
    done := @schema@.run((held[i]).state, which[from_op[held_keys[i]] : from_op[held_keys[i] + 1] - 1], ops,
      op_at, now_ms, grain);
    allowed := allowed || done.allowed;
    before := before || done.before;
    sizes := sizes || done.sizes;
    IF done.is_news THEN
      told := told || (held[i]).name;
    END IF;
    IF done.after = '{}' THEN
      DELETE FROM @schema@.@table@ t WHERE t.ctid = places[i];
    ELSIF done.after IS NOT NULL THEN
      UPDATE @schema@.@table@ t SET state = done.after, expires_ms = done.expires_ms WHERE t.ctid = places[i];
    END IF;
  END LOOP;
  -- Whoever adds rows looks for as many that are over.
  IF added > 0 THEN
    PERFORM @schema@.clean_@table@(least(added, 4), now_ms);
  END IF;
  IF told <> '{}' THEN
    PERFORM @schema@.tell_@table@(told);
  END IF;
END $$;

-- Says what a check would say, and locks and writes nothing.
CREATE OR REPLACE FUNCTION @schema@.peek_@table@(keys uuid[], from_op int[], which int[], ops bigint[], op_at int[],
  given_ms bigint,
  OUT now_ms bigint, OUT visited int[], OUT allowed boolean[], OUT before bigint[], OUT sizes int[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  grain CONSTANT bigint := CASE WHEN given_ms IS NULL THEN 1 ELSE 0 END;
  held record;
  done record;
BEGIN
  now_ms := coalesce(given_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);
  visited := '{}';
  allowed := '{}';
  before := '{}';
  sizes := '{}';
  FOR held IN
    SELECT a.k::int AS k, t.state FROM unnest(keys) WITH ORDINALITY a (name, k)
      LEFT JOIN @schema@.@table@ t ON t.name = a.name
  LOOP
    done := @schema@.run(held.state, which[from_op[held.k] : from_op[held.k + 1] - 1], ops, op_at, now_ms, grain);
    visited := visited || held.k;
    allowed := allowed || done.allowed;
    before := before || done.before;
    sizes := sizes || done.sizes;
  END LOOP;
END $$;
