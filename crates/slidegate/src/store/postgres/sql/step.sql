-- Executes one operation on one key, like the core's `decide`.
--
-- A record consists of parts: the states of a policy's quotas, then those of other versions of the policy, then a block.
-- A part consists of the algorithm, the window, the number of numbers that follow, and these numbers:
--   1 sliding-window: start, prev, cur
--   2 strict-window, 3 sliding-log: time and count of each entry, the oldest first
--   4 fixed-window: start, cur
--   5 token-bucket: time, tokens owed, a rest in units of 1/window token, limit, capacity
--   6 block: the moment until which the key is denied
-- The core's `carry_over` describes which part counts for which quota, and which other parts are kept.
--
-- An operation consists of a verb (1 check, 2 peek, 3 refund, 4 reset, 5 charge, 6 block), a cost (of a block:
-- milliseconds), the number of quotas, and for each quota the algorithm, limit, window, capacity and an option (anchor or
-- slots).
--
-- Results:
--   is_allowed: null if the record would be too large
--   before: the record that the decision was based on, with one part per quota, 0 for a new part, and an excerpt of a log;
--     of a reset, 1 if it removed anything
--   after: the new record; null if it is unchanged, empty if the row is to be deleted
--   expires_ms: the moment until which the new record counts anything
--   is_invalidation: whether retry times that were returned before may have become too long, because of a refund, a reset or
--     another limit
CREATE OR REPLACE FUNCTION @schema@.step(rec bigint[], op bigint[], now_ms bigint, grain bigint,
  OUT is_allowed boolean, OUT before bigint[], OUT after bigint[], OUT expires_ms bigint, OUT is_invalidation boolean)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  verb CONSTANT bigint := op[1];
  cost CONSTANT bigint := CASE WHEN op[1] = 6 THEN 0 ELSE op[2] END;
  quotas CONSTANT int := op[3];
  longest_block CONSTANT bigint := 31622400000;
  -- Positions of the parts; in `left_parts`, 0 for a part that a quota has taken.
  parts int[] := '{}';
  left_parts int[];
  is_used boolean[];
  places int[] := array_fill(0, ARRAY[quotas]);
  -- Position of the source of each copied part.
  sources int[] := array_fill(0, ARRAY[quotas]);
  moved int[] := '{}';
  blocked bigint := 0;
  behind bigint[] := '{}';
  longest bigint;
  nearest bigint;
  distance bigint;
  best int;
  until_ms bigint;
  kept int := 0;
  kept_parts int[] := '{}';
  views bigint[];
  v bigint[];
  is_sound boolean := true;
  is_known boolean := false;
  is_adjusted boolean := false;
  is_changed boolean := false;
  is_kept boolean;
  spent bigint[] := array_fill(0::bigint, ARRAY[quotas]);
  counted bigint := 0;
  -- Units spent from each quota.
  paid bigint := 0;
  -- Units of `paid` that a part of another version counts.
  extra bigint;
  other bigint[];
  part bigint[];
  q int;
  size int;
  pos int := 1;
BEGIN
  is_invalidation := false;
  WHILE is_sound AND pos <= coalesce(cardinality(rec), 0) LOOP
    size := rec[pos + 2];
    is_sound := coalesce(size BETWEEN 0 AND cardinality(rec) - pos - 2 AND (CASE rec[pos]
      WHEN 1 THEN size = 3 WHEN 4 THEN size = 2 WHEN 5 THEN size = 5 WHEN 6 THEN size = 1 ELSE size % 2 = 0 END), false);
    IF is_sound AND rec[pos] = 6 THEN
      blocked := rec[pos + 3];
      is_known := is_known OR blocked > now_ms;
    ELSIF is_sound THEN
      parts := parts || pos;
      is_known := is_known OR @schema@.ends(rec, pos) > now_ms;
    END IF;
    pos := pos + 3 + size;
  END LOOP;
  is_sound := is_sound AND (rec IS NULL OR coalesce(NOT (0 > ANY (rec)), false));
  IF blocked <= now_ms OR blocked - now_ms > longest_block THEN
    blocked := 0;
  END IF;

  IF verb = 4 THEN
    is_allowed := true;
    IF rec IS NOT NULL THEN
      after := '{}';
      is_invalidation := true;
      IF NOT is_sound OR blocked > 0 OR EXISTS (SELECT FROM unnest(parts) p (at)
          WHERE @schema@.ends(rec, p.at) > now_ms AND @schema@.latest(rec, p.at) - now_ms <= rec[p.at + 1]) THEN
        before := ARRAY[1];
      END IF;
    END IF;
    RETURN;
  ELSIF NOT is_sound THEN
    RAISE EXCEPTION 'the record of the key is invalid' USING ERRCODE = 'data_exception';
  END IF;
  -- A record that counts nothing is equal to none, because it may have been cleaned.
  IF NOT is_known THEN
    parts := '{}';
  END IF;

  -- Each quota takes its own part, else a copy of the nearest one. A part is the source of one copy.
  left_parts := parts;
  is_used := array_fill(false, ARRAY[cardinality(parts)]);
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    FOR j IN 1 .. cardinality(parts) LOOP
      IF places[i] = 0 AND left_parts[j] > 0 AND @schema@.is_of(rec, parts[j], op, q) THEN
        places[i] := parts[j];
        left_parts[j] := 0;
        is_used[j] := true;
        is_changed := is_changed OR j <> i;
      END IF;
    END LOOP;
  END LOOP;
  FOR turn IN 1 .. 2 LOOP
    FOR i IN 1 .. quotas LOOP
      CONTINUE WHEN places[i] > 0;
      q := 5 * i - 1;
      best := 0;
      FOR j IN 1 .. cardinality(parts) LOOP
        distance := abs(rec[parts[j] + 1] - op[q + 2]);
        IF NOT is_used[j] AND rec[parts[j]] = op[q] AND (turn = 2 OR distance = 0) AND (best = 0 OR distance < nearest)
            AND @schema@.ends(rec, parts[j]) > now_ms THEN
          best := j;
          nearest := distance;
        END IF;
      END LOOP;
      IF best > 0 THEN
        places[i] := parts[best];
        sources[i] := parts[best];
        is_used[best] := true;
        is_changed := true;
      END IF;
    END LOOP;
  END LOOP;
  FOR i IN 1 .. quotas LOOP
    is_changed := is_changed OR (places[i] = 0 AND i <= cardinality(parts));
  END LOOP;

  -- Five numbers per view: used units, whether it is adjusted, and three of the algorithm.
  is_allowed := true;
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    v := CASE op[q]
      WHEN 1 THEN @schema@.view_sliding_window(rec, places[i], op, q, now_ms)
      WHEN 4 THEN @schema@.view_fixed_window(rec, places[i], op, q, now_ms)
      WHEN 5 THEN @schema@.view_token_bucket(rec, places[i], op, q, now_ms)
      ELSE @schema@.view_entries(rec, places[i], op, q, now_ms, grain)
    END;
    views := views || v;
    is_allowed := is_allowed AND v[1] + cost <= op[q + 3];
    is_adjusted := is_adjusted OR v[2] > 0;
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
  IF blocked > 0 THEN
    before := before || ARRAY[6, 0, 1, blocked];
  END IF;

  IF verb IN (3, 6) THEN
    is_allowed := true;
    IF rec IS NULL AND (verb = 3 OR op[2] = 0) THEN
      RETURN;
    END IF;
    is_kept := true;
    is_invalidation := cost > 0 OR verb = 6;
    IF verb = 6 THEN
      blocked := CASE WHEN op[2] > 0 THEN now_ms + least(op[2], longest_block) ELSE 0 END;
    END IF;
  ELSE
    FOR i IN 1 .. quotas LOOP
      spent[i] := CASE WHEN verb = 5 THEN @schema@.chargeable(views[5 * i - 4], cost)
        WHEN verb = 1 AND is_allowed THEN cost ELSE 0 END;
    END LOOP;
    -- A denial leaves the record unchanged, unless a changed policy has to adjust it: it may have to live longer.
    is_kept := (verb = 5 OR (verb = 1 AND blocked = 0)) AND (is_adjusted OR 0 < ANY (spent));
    is_allowed := is_allowed AND blocked = 0;
    paid := CASE WHEN verb = 5 OR (verb = 1 AND is_allowed) THEN cost ELSE 0 END;
  END IF;
  IF NOT is_kept THEN
    RETURN;
  END IF;

  is_invalidation := is_invalidation OR is_adjusted OR is_changed;
  after := '{}';
  expires_ms := greatest(now_ms, blocked);
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    pos := places[i];
    v := views[q - 3 : q + 1];
    IF verb IN (1, 5) AND spent[i] = 0 AND v[2] = 0 AND pos > 0 THEN
      -- Only another quota was adjusted.
      part := v[1] || rec[pos : pos + 2 + rec[pos + 2]::int];
    ELSE
      IF verb IN (1, 5) AND spent[i] = 0 AND v[2] = 0 THEN
        -- A new part stays empty.
        v := ARRAY[0, 0, 0, 0, 0];
      END IF;
      part := CASE op[q]
        WHEN 1 THEN @schema@.keep_sliding_window(v, op, q, verb, spent[i], rec[pos + 1], now_ms)
        WHEN 4 THEN @schema@.keep_fixed_window(v, op, q, verb, spent[i], rec[pos + 1], now_ms)
        WHEN 5 THEN @schema@.keep_token_bucket(v, op, q, verb, spent[i])
        ELSE @schema@.keep_entries(rec, pos, v, op, q, verb, spent[i], grain)
      END;
    END IF;
    IF part IS NULL THEN
      is_allowed := NULL;
      after := NULL;
      RETURN;
    END IF;
    -- A copy that still has its source's window replaces the source.
    IF sources[i] > 0 AND part[3] = rec[sources[i] + 1]
        AND (op[q] <> 5 OR (part[8] = rec[sources[i] + 6] AND part[9] = rec[sources[i] + 7])) THEN
      moved := moved || sources[i];
    END IF;
    pos := cardinality(after) + 1;
    after := after || part[2 : cardinality(part)];
    IF part[1] > 0 THEN
      counted := counted + part[1];
      expires_ms := greatest(expires_ms, @schema@.counts_until(after, pos, op, q));
    END IF;
  END LOOP;

  -- The remaining parts are kept while they count units. Afterwards they are kept until two windows have passed since they
  -- were written, by the longest window among the parts of their algorithm. Their largest number is the core's.
  FOR turn IN 1 .. 2 LOOP
    -- Parts that count units have precedence.
    FOR j IN 1 .. cardinality(parts) LOOP
      pos := left_parts[j];
      CONTINUE WHEN pos = 0 OR pos = ANY (moved) OR @schema@.latest(rec, pos) - now_ms > rec[pos + 1];
      until_ms := @schema@.ends(rec, pos);
      CONTINUE WHEN (turn = 1) <> (until_ms > now_ms);
      IF turn = 2 THEN
        longest := greatest(
          (SELECT max(greatest(op[5 * i.n - 1 + 2], CASE WHEN places[i.n] > 0 THEN rec[places[i.n] + 1] ELSE 0 END))
            FROM generate_series(1, quotas) i (n) WHERE op[5 * i.n - 1] = rec[pos]),
          (SELECT max(rec[l.at + 1]) FROM unnest(left_parts) l (at)
            WHERE l.at > 0 AND l.at <> pos AND rec[l.at] = rec[pos]));
        CONTINUE WHEN longest IS NULL
          OR @schema@.latest(rec, pos) + 2 * greatest(longest, rec[pos + 1]) <= now_ms;
      END IF;
      IF kept = 16 THEN
        is_invalidation := is_invalidation OR turn = 1;
      ELSE
        kept := kept + 1;
        kept_parts := kept_parts || pos;
        expires_ms := greatest(expires_ms, until_ms);
      END IF;
    END LOOP;
  END LOOP;
  FOREACH pos IN ARRAY left_parts LOOP
    CONTINUE WHEN pos <> ALL (kept_parts);
    part := NULL;
    IF (paid > 0 OR (verb = 3 AND cost > 0))
        AND EXISTS (SELECT FROM generate_series(1, quotas) i (n) WHERE op[5 * i.n - 1] = rec[pos]) THEN
      -- Units that are spent or refunded also count in the parts of other versions, under their own quotas. They increase
      -- the debt of a token bucket up to its capacity.
      other := ARRAY[CASE WHEN verb = 3 THEN 3 ELSE 5 END, CASE WHEN verb = 3 THEN cost ELSE paid END, 1, rec[pos],
        CASE WHEN rec[pos] = 5 THEN rec[pos + 6] ELSE 0 END, rec[pos + 1],
        CASE WHEN rec[pos] = 5 THEN rec[pos + 7] ELSE 0 END, CASE WHEN rec[pos] = 2 THEN 16 ELSE 0 END];
      v := CASE rec[pos]
        WHEN 1 THEN @schema@.view_sliding_window(rec, pos, other, 4, now_ms)
        WHEN 4 THEN @schema@.view_fixed_window(rec, pos, other, 4, now_ms)
        WHEN 5 THEN @schema@.view_token_bucket(rec, pos, other, 4, now_ms)
        ELSE @schema@.view_entries(rec, pos, other, 4, now_ms, grain)
      END;
      extra := CASE WHEN verb = 3 THEN 0 ELSE @schema@.chargeable(v[1], paid) END;
      IF verb <> 3 AND rec[pos] = 5 THEN
        -- A debt that already exceeds the capacity stays unchanged.
        IF v[4] < rec[pos + 7] AND v[4] + paid >= rec[pos + 7] THEN
          v[4] := rec[pos + 7];
          v[5] := 0;
        ELSIF v[4] < rec[pos + 7] THEN
          v[4] := v[4] + paid;
        END IF;
        part := @schema@.keep_token_bucket(v, other, 4, 5, 0);
      ELSIF extra > 0 OR (verb = 3 AND v[1] > 0) THEN
        part := CASE rec[pos]
          WHEN 1 THEN @schema@.keep_sliding_window(v, other, 4, other[1], extra, rec[pos + 1], now_ms)
          WHEN 4 THEN @schema@.keep_fixed_window(v, other, 4, other[1], extra, rec[pos + 1], now_ms)
          WHEN 5 THEN @schema@.keep_token_bucket(v, other, 4, other[1], extra)
          ELSE @schema@.keep_entries(rec, pos, v, other, 4, other[1], extra, grain)
        END;
      END IF;
    END IF;
    IF part IS NULL THEN
      behind := behind || rec[pos : pos + 2 + rec[pos + 2]::int];
    ELSE
      part := part[2 : cardinality(part)];
      behind := behind || part;
      expires_ms := greatest(expires_ms, @schema@.counts_until(part, 1, other, 4));
    END IF;
  END LOOP;
  IF blocked > 0 THEN
    behind := behind || ARRAY[6, 0, 1, blocked];
  END IF;
  IF verb IN (3, 6) AND counted = 0 AND behind = '{}' THEN
    after := '{}';
  ELSE
    after := after || behind;
  END IF;
END $$;
