-- The directory of one mesh in one database: the signed changes that every node also has in its own file.
--
-- {owner} and {nodes} are roles that cannot log in: the owner of everything here, and the group of all nodes. A node reads, and
-- appends the changes of its own signers by append(); it has no right to update, delete or truncate. The database does not
-- verify signatures: every node does.

CREATE SCHEMA adit_mesh AUTHORIZATION {owner};
SET LOCAL ROLE {owner};
SET LOCAL search_path = adit_mesh, pg_temp;

CREATE TABLE mesh (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,               -- of this schema
    id      bytea   NOT NULL CHECK (octet_length(id) = 16),
    name    text    NOT NULL,
    genesis bytea   NOT NULL CHECK (octet_length(genesis) BETWEEN 1 AND {max_object})
);

-- Which role appends whose changes. Only the owner writes here.
CREATE TABLE signer (
    signer bytea PRIMARY KEY CHECK (octet_length(signer) = 32), -- SHA-256 of the public key
    role   name  NOT NULL,
    added  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE change (
    place   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,    -- the order of commits
    signer  bytea  NOT NULL CHECK (octet_length(signer) = 32),
    number  bigint NOT NULL CHECK (number BETWEEN 1 AND {max_chain}),
    bytes   bytea  NOT NULL CHECK (octet_length(bytes) BETWEEN {min_change} AND {max_object}),
    arrived timestamptz NOT NULL DEFAULT clock_timestamp(),
    role    name   NOT NULL DEFAULT session_user,
    UNIQUE (signer, number)
);
CREATE INDEX change_arrived ON change (signer, arrived);

-- For people: what the changes are, without their verification.
CREATE VIEW changes AS
    SELECT c.place, c.arrived, c.role, encode(c.signer, 'hex') AS signer, c.number,
        CASE encode(substr(c.bytes, 80 + 32 * h.heads, 1), 'hex')
            WHEN '01' THEN 'admit' WHEN '02' THEN 'revoke' WHEN '03' THEN 'set-policy' WHEN '04' THEN 'grant'
            WHEN '05' THEN 'set-names' WHEN '06' THEN 'set-threshold' WHEN '07' THEN 'rotate' WHEN '08' THEN 'approve'
        END AS kind,
        encode(substr(c.bytes, 81 + 32 * h.heads, 32), 'hex') AS subject,   -- a key's hash, except with set-threshold
        octet_length(c.bytes) AS length
    FROM change c CROSS JOIN LATERAL (SELECT get_byte(c.bytes, 78) AS heads) h;

-- Appends a change of a signer that is this session's role's, if the previous one is there and none with its number.
CREATE FUNCTION append(of bytea, nr bigint, object bytea, OUT result text, OUT other bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit_mesh, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM signer s WHERE s.signer = of AND s.role = session_user) THEN
        RAISE insufficient_privilege USING MESSAGE = 'this role does not append the changes of that signer: run adit mesh directory postgres URL --init on its node';
    END IF;
    IF object IS NULL OR octet_length(object) NOT BETWEEN {min_change} AND {max_object} THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a change has {min_change} to {max_object} bytes';
    END IF;
    IF substr(object, 1, 2) <> '\x0201' OR sha256(substr(object, 3, 32)) <> of
        OR ('x' || encode(substr(object, 35, 4), 'hex'))::bit(32)::bigint & 4294967295 <> nr THEN
        RAISE invalid_parameter_value USING MESSAGE = 'this is no change of that signer and number';
    END IF;
    -- One at a time: places are in the order of commits, so that no reader misses one.
    PERFORM FROM mesh FOR UPDATE;
    SELECT c.bytes INTO other FROM change c WHERE c.signer = of AND c.number = nr;
    IF FOUND THEN
        result := CASE WHEN other = object THEN 'known' ELSE 'conflict' END;
        RETURN;
    END IF;
    IF nr <> 1 AND NOT EXISTS (SELECT FROM change c WHERE c.signer = of AND c.number = nr - 1) THEN
        result := 'gap';
        RETURN;
    END IF;
    IF nr > {max_chain} OR (SELECT count(*) FROM change) >= {max_changes} THEN
        RAISE program_limit_exceeded USING MESSAGE = 'the directory has as many changes as a mesh can have';
    END IF;
    IF (SELECT count(*) FROM change c WHERE c.signer = of AND c.arrived > now() - interval '1 day') >= {max_per_day} THEN
        RAISE configuration_limit_exceeded USING MESSAGE = 'this signer has appended {max_per_day} changes within a day, which is the limit: the rest follows later';
    END IF;
    INSERT INTO change (signer, number, bytes) VALUES (of, nr, object);
    NOTIFY adit_mesh;
    result := 'added';
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA adit_mesh FROM PUBLIC;
GRANT USAGE ON SCHEMA adit_mesh TO {nodes};
GRANT SELECT ON mesh, signer, change, changes TO {nodes};
GRANT EXECUTE ON FUNCTION append(bytea, bigint, bytea) TO {nodes};
