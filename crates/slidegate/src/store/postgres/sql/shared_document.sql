-- Shared document: a text that all nodes read and change, such as the changes made by operators. It survives a crash.
CREATE TABLE IF NOT EXISTS @schema@.shared_document (
  version bigint NOT NULL,
  text text NOT NULL,
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only)
);

-- Returns the document, or nulls if its version is `known`. `known` is 0 for a node that has read none.
CREATE OR REPLACE FUNCTION @schema@.read_shared_document(known bigint, OUT current_version bigint, OUT current_text text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  SELECT d.version, d.text INTO current_version, current_text FROM @schema@.shared_document d;
  IF coalesce(current_version, 0) = known THEN
    current_version := NULL; current_text := NULL;
  ELSIF current_version IS NULL THEN
    current_version := 0; current_text := '';
  END IF;
END $$;

-- Replaces the document of version `known`. Returns false, and changes nothing, if its version is another one.
CREATE OR REPLACE FUNCTION @schema@.write_shared_document(known bigint, new_version bigint, new_text text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF known = 0 THEN
    INSERT INTO @schema@.shared_document (version, text) VALUES (new_version, new_text) ON CONFLICT DO NOTHING;
  ELSE
    UPDATE @schema@.shared_document SET version = new_version, text = new_text WHERE version = known;
  END IF;
  RETURN FOUND;
END $$;
