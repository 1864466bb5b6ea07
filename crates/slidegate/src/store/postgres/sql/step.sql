-- The core's `decide` for one operation on one key.
--
-- A record is the state of each quota of a policy, one after the other: algorithm, window, how many numbers follow, and
-- these. sliding-window (1): start, prev, cur. strict-window (2) and sliding-log (3): time and count of each entry, the
-- oldest first. fixed-window (4): start, cur. token-bucket (5): when, tokens owed, a rest in windowths
-- of one, and the limit.
--
-- An operation is a verb (1 check, 2 peek, 3 refund, 4 reset), a cost, how many quotas follow, and for each algorithm,
-- limit, window, capacity and an option (anchor or slots).
--
-- Behind these may stand parts of other versions of the policy, which are left alone as long as they count something.
--
-- `before` is what the decision was made from: a record whose parts stand at their quotas' places, 0 for what is new,
-- a log cut down to the entries that matter. `after` is null if nothing has to be kept anew, and empty if the key is
-- forgotten. `is_allowed` is null if there is no room for it. Until `expires_ms` something is counted. `is_news` if others
-- may have to wait for less time than they were told: something was given back, or the limit is another one.
CREATE OR REPLACE FUNCTION @schema@.step(rec bigint[], op bigint[], now_ms bigint,
  OUT is_allowed boolean, OUT before bigint[], OUT after bigint[], OUT expires_ms bigint, OUT is_news boolean)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  verb CONSTANT bigint := op[1];
  cost CONSTANT bigint := op[2];
  quotas CONSTANT int := op[3];
  parts int[] := '{}';
  found int[];
  behind bigint[] := '{}';
  behind_until bigint := 0;
  until_ms bigint;
  kept int := 0;
  places int[] := array_fill(0, ARRAY[quotas]);
  views bigint[];
  v bigint[];
  is_mended boolean := false;
  is_changed boolean := false;
  spent bigint := 0;
  counted bigint := 0;
  part bigint[];
  q int;
  size int;
  pos int := 1;
BEGIN
  is_news := false;
  IF verb = 4 THEN
    is_allowed := true;
    IF rec IS NOT NULL THEN
      after := '{}';
      is_news := true;
    END IF;
    RETURN;
  END IF;

  WHILE pos <= coalesce(cardinality(rec), 0) LOOP
    parts := parts || pos;
    size := rec[pos + 2];
    IF size BETWEEN 0 AND cardinality(rec) - pos - 2 AND (CASE rec[pos]
        WHEN 1 THEN size = 3 WHEN 4 THEN size = 2 WHEN 5 THEN size = 4 ELSE size % 2 = 0 END) THEN
      pos := pos + 3 + size;
    ELSE
      RAISE EXCEPTION 'the record makes no sense' USING ERRCODE = 'data_exception';
    END IF;
  END LOOP;
  IF array_position(rec, NULL) > 0 THEN
    RAISE EXCEPTION 'the record makes no sense' USING ERRCODE = 'data_exception';
  END IF;
  found := parts;
  -- The same window counted by the same algorithm wherever it stands, of buckets first those of the same rate, else the
  -- same algorithm at the same place.
  FOR turn IN 1 .. 2 LOOP
    FOR i IN 1 .. quotas LOOP
      q := 5 * i - 1;
      FOR j IN 1 .. cardinality(parts) LOOP
        IF places[i] = 0 AND parts[j] > 0 AND rec[parts[j]] = op[q] AND rec[parts[j] + 1] = op[q + 2]
            AND (turn = 2 OR op[q] <> 5 OR rec[parts[j] + 6] = op[q + 1]) THEN
          places[i] := parts[j];
          parts[j] := 0;
        END IF;
      END LOOP;
    END LOOP;
  END LOOP;
  FOR i IN 1 .. quotas LOOP
    IF places[i] = 0 AND coalesce(parts[i], 0) > 0 AND rec[parts[i]] = op[5 * i - 1] THEN
      places[i] := parts[i];
      parts[i] := 0;
      is_changed := true;
    ELSIF places[i] <> found[i] OR (places[i] > 0 AND op[5 * i - 1] = 5 AND rec[places[i] + 6] <> op[5 * i]) THEN
      -- Another part, or one that is paid off at another rate.
      is_changed := true;
    END IF;
  END LOOP;

  -- Five numbers for each view: used, whether it is mended, and three of the algorithm's own.
  is_allowed := true;
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    v := CASE op[q]
      WHEN 1 THEN @schema@.view_sliding_window(rec, places[i], op, q, now_ms)
      WHEN 4 THEN @schema@.view_fixed_window(rec, places[i], op, q, now_ms)
      WHEN 5 THEN @schema@.view_token_bucket(rec, places[i], op, q, now_ms)
      ELSE @schema@.view_entries(rec, places[i], op, q, now_ms)
    END;
    views := views || v;
    is_allowed := is_allowed AND v[1] + cost <= op[q + 3];
    is_mended := is_mended OR v[2] > 0;
  END LOOP;

  before := '{}';
  FOR i IN 1 .. quotas LOOP
    pos := places[i];
    IF pos = 0 THEN
      before := before || 0::bigint;
    ELSIF rec[pos] = 3 THEN
      before := before || @schema@.excerpt(rec, pos, op, 5 * i - 1, views[5 * i - 4 : 5 * i], is_allowed);
    ELSE
      before := before || rec[pos : pos + 2 + rec[pos + 2]::int];
    END IF;
  END LOOP;

  IF verb = 3 THEN
    is_allowed := true;
    IF rec IS NULL THEN
      RETURN;
    END IF;
  ELSIF verb = 1 THEN
    spent := CASE WHEN is_allowed THEN cost ELSE 0 END;
    IF spent = 0 AND NOT is_mended THEN
      -- A denial leaves the record as it is. What a changed policy counts for longer is mended, and kept for longer.
      RETURN;
    END IF;
  ELSE
    RETURN;
  END IF;

  is_news := (verb = 3 AND cost > 0) OR is_mended OR is_changed;
  -- What is left and counts something still is kept behind the others, as it is; so many of it as in the core.
  FOR j IN 1 .. cardinality(parts) LOOP
    pos := parts[j];
    CONTINUE WHEN pos = 0;
    until_ms := @schema@.left_until(rec, pos, now_ms);
    IF until_ms > now_ms AND kept = 16 THEN
      is_news := true;
    ELSIF until_ms > now_ms THEN
      kept := kept + 1;
      behind := behind || rec[pos : pos + 2 + rec[pos + 2]::int];
      behind_until := greatest(behind_until, until_ms);
    END IF;
  END LOOP;
  after := '{}';
  expires_ms := greatest(now_ms, behind_until);
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    pos := places[i];
    v := views[q - 3 : q + 1];
    IF verb = 1 AND spent = 0 AND v[2] = 0 AND pos > 0 THEN
      -- Another quota was mended; this one stays as it is.
      part := v[1] || rec[pos : pos + 2 + rec[pos + 2]::int];
    ELSE
      part := CASE op[q]
        WHEN 1 THEN @schema@.keep_sliding_window(v, op, q, verb, spent, rec[pos + 1], now_ms)
        WHEN 4 THEN @schema@.keep_fixed_window(v, op, q, verb, spent, rec[pos + 1], now_ms)
        WHEN 5 THEN @schema@.keep_token_bucket(v, op, q, verb, spent)
        ELSE @schema@.keep_entries(rec, pos, v, op, q, verb, spent)
      END;
    END IF;
    IF part IS NULL THEN
      is_allowed := NULL;
      after := NULL;
      RETURN;
    END IF;
    pos := cardinality(after) + 1;
    after := after || part[2 : cardinality(part)];
    IF part[1] > 0 THEN
      counted := counted + part[1];
      expires_ms := greatest(expires_ms, @schema@.counts_until(after, pos, op, q));
    END IF;
  END LOOP;
  IF verb = 3 AND counted = 0 AND kept = 0 THEN
    after := '{}';
  ELSE
    after := after || behind;
  END IF;
END $$;
