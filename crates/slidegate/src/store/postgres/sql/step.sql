-- The core's `decide` for one operation on one key.
--
-- A record is the state of each quota of a policy, one after the other: algorithm, window, how many numbers follow, and
-- these. sliding-window (1): start, prev, cur. strict-window (2) and sliding-log (3): time and count of each entry, the
-- oldest first. fixed-window (4): start, cur. token-bucket (5): when, tokens owed, a rest in windowths
-- of one, the limit, and the capacity. Last of all may stand a block (6): until when the key is denied.
--
-- An operation is a verb (1 check, 2 peek, 3 refund, 4 reset, 5 charge, 6 block), a cost (of a block, milliseconds), how many quotas follow, and for each algorithm,
-- limit, window, capacity and an option (anchor or slots).
--
-- Behind these may stand parts of other versions of the policy, which are left alone. Which part counts for which quota, and
-- what is kept of the others, is said in the core's `carry_over`.
--
-- `before` is what the decision was made from: a record whose parts stand at their quotas' places, 0 for what is new,
-- a log cut down to the entries that matter; of a reset, 1 if it found something. `after` is null if nothing has to be kept anew, and empty if the key is
-- forgotten. `is_allowed` is null if there is no room for it. Until `expires_ms` something is counted. `is_news` if others
-- may have to wait for less time than they were told: something was given back, or the limit is another one.
CREATE OR REPLACE FUNCTION @schema@.step(rec bigint[], op bigint[], now_ms bigint, grain bigint,
  OUT is_allowed boolean, OUT before bigint[], OUT after bigint[], OUT expires_ms bigint, OUT is_news boolean)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  verb CONSTANT bigint := op[1];
  cost CONSTANT bigint := CASE WHEN op[1] = 6 THEN 0 ELSE op[2] END;
  quotas CONSTANT int := op[3];
  longest_block CONSTANT bigint := 31622400000;
  -- Where parts begin; and the same without those that a quota has taken.
  parts int[] := '{}';
  left_parts int[];
  is_used boolean[];
  places int[] := array_fill(0, ARRAY[quotas]);
  -- Of copies, where the source is.
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
  is_mended boolean := false;
  is_changed boolean := false;
  is_kept boolean;
  spent bigint[] := array_fill(0::bigint, ARRAY[quotas]);
  counted bigint := 0;
  -- What is spent from each quota.
  paid bigint := 0;
  -- What another version's part counts of it.
  extra bigint;
  other bigint[];
  part bigint[];
  q int;
  size int;
  pos int := 1;
BEGIN
  is_news := false;
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
      is_news := true;
      IF NOT is_sound OR blocked > 0 OR EXISTS (SELECT FROM unnest(parts) p (at)
          WHERE @schema@.ends(rec, p.at) > now_ms AND @schema@.latest(rec, p.at) - now_ms <= rec[p.at + 1]) THEN
        before := ARRAY[1];
      END IF;
    END IF;
    RETURN;
  ELSIF NOT is_sound THEN
    RAISE EXCEPTION 'the record makes no sense' USING ERRCODE = 'data_exception';
  END IF;
  -- What counts nothing is as good as nothing: it may have been removed.
  IF NOT is_known THEN
    parts := '{}';
  END IF;

  -- Each quota's own part, else a copy of the nearest one, each source for one quota.
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

  -- Five numbers for each view: used, whether it is mended, and three of the algorithm's own.
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
  IF blocked > 0 THEN
    before := before || ARRAY[6, 0, 1, blocked];
  END IF;

  IF verb IN (3, 6) THEN
    is_allowed := true;
    IF rec IS NULL AND (verb = 3 OR op[2] = 0) THEN
      RETURN;
    END IF;
    is_kept := true;
    is_news := cost > 0 OR verb = 6;
    IF verb = 6 THEN
      blocked := CASE WHEN op[2] > 0 THEN now_ms + least(op[2], longest_block) ELSE 0 END;
    END IF;
  ELSE
    FOR i IN 1 .. quotas LOOP
      spent[i] := CASE WHEN verb = 5 THEN @schema@.chargeable(views[5 * i - 4], cost)
        WHEN verb = 1 AND is_allowed THEN cost ELSE 0 END;
    END LOOP;
    -- A denial leaves the record as it is. What a changed policy counts for longer is mended, and kept for longer.
    is_kept := (verb = 5 OR (verb = 1 AND blocked = 0)) AND (is_mended OR 0 < ANY (spent));
    is_allowed := is_allowed AND blocked = 0;
    paid := CASE WHEN verb = 5 OR (verb = 1 AND is_allowed) THEN cost ELSE 0 END;
  END IF;
  IF NOT is_kept THEN
    RETURN;
  END IF;

  is_news := is_news OR is_mended OR is_changed;
  after := '{}';
  expires_ms := greatest(now_ms, blocked);
  FOR i IN 1 .. quotas LOOP
    q := 5 * i - 1;
    pos := places[i];
    v := views[q - 3 : q + 1];
    IF verb IN (1, 5) AND spent[i] = 0 AND v[2] = 0 AND pos > 0 THEN
      -- Another quota was mended; this one stays as it is.
      part := v[1] || rec[pos : pos + 2 + rec[pos + 2]::int];
    ELSE
      IF verb IN (1, 5) AND spent[i] = 0 AND v[2] = 0 THEN
        -- Nor is this one written.
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
    -- A copy that is still counted by its source's window is the source itself.
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

  -- The remaining parts are kept behind the others while they count something, and for two of the longest window among the
  -- others of their algorithm after they were written; as many of them as in the core.
  FOR turn IN 1 .. 2 LOOP
    -- What counts something goes before what is used up.
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
        is_news := is_news OR turn = 1;
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
      -- Units that are spent or refunded count in other versions too, under the quota that the part was counted for. A token
      -- bucket owes at most its capacity for them.
      other := ARRAY[CASE WHEN verb = 3 THEN 3 ELSE 5 END, CASE WHEN verb = 3 THEN cost ELSE paid END, 1, rec[pos], CASE WHEN rec[pos] = 5 THEN rec[pos + 6] ELSE 0 END, rec[pos + 1],
        CASE WHEN rec[pos] = 5 THEN rec[pos + 7] ELSE 0 END, CASE WHEN rec[pos] = 2 THEN 16 ELSE 0 END];
      v := CASE rec[pos]
        WHEN 1 THEN @schema@.view_sliding_window(rec, pos, other, 4, now_ms)
        WHEN 4 THEN @schema@.view_fixed_window(rec, pos, other, 4, now_ms)
        WHEN 5 THEN @schema@.view_token_bucket(rec, pos, other, 4, now_ms)
        ELSE @schema@.view_entries(rec, pos, other, 4, now_ms, grain)
      END;
      extra := CASE WHEN verb = 3 THEN 0 ELSE @schema@.chargeable(v[1], paid) END;
      IF verb <> 3 AND rec[pos] = 5 THEN
        -- Up to the capacity. A debt that exceeds it already stays as it is.
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
