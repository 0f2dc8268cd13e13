-- The tables, functions and rights of one network in one database.
--
-- {owner}, {nodes} and {auditors} stand for three roles that cannot log in: the owner of everything here, the
-- group of all nodes, the group of those who may read everything. A node writes only the leaves of its own
-- streams, and reads only what is addressed to it; whatever else it may do is one of the functions below,
-- which ask who the session's role is.

CREATE SCHEMA adit AUTHORIZATION {owner};
SET LOCAL ROLE {owner};
SET LOCAL search_path = adit, pg_temp;

-- The network. `mac` covers the rest under the network's key, which the database never sees.
CREATE TABLE network (
    one             boolean PRIMARY KEY DEFAULT true CHECK (one),
    version         integer NOT NULL,
    tag             text    NOT NULL,       -- part of the roles' names
    network4        cidr,
    network6        cidr,
    packet_size     integer NOT NULL,       -- longest IP packet, bytes
    audit           text    NOT NULL,       -- full, headers, metadata or none
    durability      text    NOT NULL,       -- strict, relaxed or volatile
    retention_bytes bigint  NOT NULL,       -- of all leaves together
    retention_age   interval NOT NULL,
    leaf_space      name,                   -- a tablespace for the leaves
    auditor_key     bytea,
    mac             bytea   NOT NULL
);

-- Whoever takes part. `mac` covers id, name, addresses, subnets and keys under the network's key.
CREATE TABLE node (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    role       name NOT NULL UNIQUE,
    address4   inet UNIQUE,
    address6   inet UNIQUE,
    subnets    cidr[]  NOT NULL DEFAULT '{}',
    sign_key   bytea,
    seal_key   bytea,
    mac        bytea,                       -- null until the node has registered
    may_invite boolean NOT NULL DEFAULT false,
    joined     timestamptz NOT NULL DEFAULT now(),
    removed    timestamptz
);

-- One-time invitations: the role of the name may join once, until then.
CREATE TABLE invitation (
    role  name PRIMARY KEY,
    until timestamptz NOT NULL,
    node  integer REFERENCES node           -- who came by it
);

-- What one node sends to another.
CREATE TABLE stream (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sender   integer NOT NULL REFERENCES node,
    receiver integer NOT NULL REFERENCES node,
    UNIQUE (sender, receiver),
    CHECK (sender <> receiver)
);

-- A stream's packets lie in leaves, table packet_STREAM_NO each, one after the other.
CREATE TABLE leaf (
    stream    integer NOT NULL REFERENCES stream,
    no        integer NOT NULL,
    first_seq bigint  NOT NULL,
    durable   boolean NOT NULL,
    opened    timestamptz NOT NULL DEFAULT statement_timestamp(),
    closed    timestamptz,                  -- when the next one was opened
    dropped   timestamptz,                  -- when its packets and keys were
    PRIMARY KEY (stream, no)
);

-- A key's time. It never reaches beyond a leaf. `record` is what the sender signed: see key/record.rs.
CREATE TABLE epoch (
    stream    integer NOT NULL,
    no        integer NOT NULL,
    leaf      integer NOT NULL,
    first_seq bigint  NOT NULL,
    opened    timestamptz NOT NULL DEFAULT statement_timestamp(),
    record    bytea   NOT NULL,
    signature bytea   NOT NULL,
    PRIMARY KEY (stream, no),
    FOREIGN KEY (stream, leaf) REFERENCES leaf
);

-- The epoch's secret, wrapped to one reader: a node, or 0 for the auditor. Dropping the wraps shreds the packets.
CREATE TABLE wrap (
    stream integer NOT NULL,
    epoch  integer NOT NULL,
    reader integer NOT NULL,
    enc    bytea   NOT NULL,
    sealed bytea   NOT NULL,
    PRIMARY KEY (stream, epoch, reader),
    FOREIGN KEY (stream, epoch) REFERENCES epoch
);

-- The parent of all leaves; has no rows of its own. A row is a packet. Which columns are null is the audit policy's.
CREATE TABLE packet (
    seq     bigint  NOT NULL,
    ts      timestamptz NOT NULL DEFAULT statement_timestamp(),
    stream  integer NOT NULL,
    epoch   integer NOT NULL,
    len     integer,                        -- of the IP packet
    sport   integer,
    dport   integer,
    proto   smallint,                       -- IP protocol
    flags   smallint,                       -- TCP flags
    src     inet,
    dst     inet,
    tag     bytea   NOT NULL,               -- of the AEAD, 16 bytes
    chain   bytea,                          -- on the last row of a batch: MAC over all tags up to here
    payload bytea   NOT NULL
);
ALTER TABLE packet ALTER tag SET STORAGE PLAIN, ALTER chain SET STORAGE PLAIN, ALTER payload SET STORAGE PLAIN;

-- For people: who to whom instead of a number.
CREATE VIEW log AS
    SELECT p.ts, f.name AS "from", t.name AS "to", p.len, p.proto, p.src, p.sport, p.dst, p.dport, p.flags,
           p.stream, p.seq, p.epoch, p.payload
    FROM packet p JOIN stream s ON s.id = p.stream JOIN node f ON f.id = s.sender JOIN node t ON t.id = s.receiver;

-- The node whose session this is; null for everybody else.
CREATE FUNCTION me() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
RETURN (SELECT id FROM node WHERE role = session_user AND removed IS NULL);

-- Makes an invitation's role. `verifier` is the SCRAM verifier of the one-time secret.
CREATE FUNCTION invite(verifier text, valid interval) RETURNS name
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    who name;
BEGIN
    IF NOT EXISTS (SELECT FROM node WHERE role = session_user AND may_invite AND removed IS NULL)
       AND NOT pg_has_role(session_user, {owner_text}, 'MEMBER') THEN
        RAISE insufficient_privilege USING MESSAGE = 'this node may not invite others';
    END IF;
    IF verifier NOT LIKE 'SCRAM-SHA-256$%' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'not a SCRAM verifier';
    END IF;
    who := format('adit_%s_join_%s', (SELECT tag FROM network), substr(md5(random()::text || clock_timestamp()), 1, 8));
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L VALID UNTIL %L CONNECTION LIMIT 2', who, verifier, now() + valid);
    EXECUTE format('GRANT USAGE ON SCHEMA adit TO %I', who);
    EXECUTE format('GRANT SELECT ON adit.network TO %I', who);
    EXECUTE format('GRANT EXECUTE ON FUNCTION adit.reserve(text, cidr[]), adit.register(integer, text, bytea, bytea, bytea) TO %I', who);
    INSERT INTO invitation VALUES (who, now() + valid);
    RETURN who;
END $$;

-- The lowest free host address of a network; the first is the network's own.
CREATE FUNCTION free_address(network cidr, taken inet[]) RETURNS inet
LANGUAGE sql STABLE SET search_path = adit, pg_temp
RETURN (SELECT set_masklen(host(network + n)::inet, masklen(network))
        FROM generate_series(1, least(65534, 2::numeric ^ (CASE family(network) WHEN 4 THEN 32 ELSE 128 END - masklen(network)) - 2)::bigint) n
        WHERE NOT host(network + n)::inet = ANY (SELECT host(t)::inet FROM unnest(taken) t WHERE t IS NOT NULL)
        ORDER BY n LIMIT 1);

-- First half of joining: a number and addresses, under the invitation's role (or as a member of the owner's, for the first node).
CREATE FUNCTION reserve(wanted text, routed cidr[], OUT id integer, OUT role name, OUT address4 inet, OUT address6 inet)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
#variable_conflict use_column
DECLARE
    first boolean := pg_has_role(session_user, {owner_text}, 'MEMBER');
BEGIN
    IF NOT first THEN
        PERFORM FROM invitation i WHERE i.role = session_user AND i.node IS NULL AND i.until > now() FOR UPDATE;
        IF NOT FOUND THEN
            RAISE insufficient_privilege USING MESSAGE = 'this invitation is used up or too old';
        END IF;
    END IF;
    IF EXISTS (SELECT FROM node n, unnest(n.subnets) s, unnest(routed) r WHERE n.removed IS NULL AND s && r) THEN
        RAISE unique_violation USING MESSAGE = 'another node has registered that network';
    END IF;
    LOCK TABLE node IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO node (name, role, address4, address6, subnets, may_invite)
    SELECT wanted, 'adit_' || w.tag || '_node_' || wanted,
           free_address(w.network4, (SELECT array_agg(n.address4) FROM node n)),
           free_address(w.network6, (SELECT array_agg(n.address6) FROM node n)), routed, first
    FROM network w
    RETURNING node.id, node.role, node.address4, node.address6 INTO id, role, address4, address6;
    IF address4 IS NULL AND address6 IS NULL THEN
        RAISE EXCEPTION 'the network has no free address';
    END IF;
    UPDATE invitation i SET node = reserve.id WHERE i.role = session_user;
END $$;

-- Second half: the node's keys under the network's MAC, its role, its streams.
CREATE FUNCTION register(node_id integer, verifier text, sign bytea, seal bytea, proof bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    who name;
BEGIN
    IF NOT pg_has_role(session_user, {owner_text}, 'MEMBER')
       AND NOT EXISTS (SELECT FROM invitation WHERE role = session_user AND node = node_id) THEN
        RAISE insufficient_privilege USING MESSAGE = 'this node was reserved by another invitation';
    END IF;
    IF verifier NOT LIKE 'SCRAM-SHA-256$%' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'not a SCRAM verifier';
    END IF;
    UPDATE node SET sign_key = sign, seal_key = seal, mac = proof WHERE id = node_id AND mac IS NULL RETURNING role INTO who;
    IF who IS NULL THEN
        RAISE unique_violation USING MESSAGE = 'this node is registered already';
    END IF;
    EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L IN ROLE %I CONNECTION LIMIT 8', who, verifier, {nodes_text});
    INSERT INTO stream (sender, receiver)
        SELECT a, b FROM (SELECT node_id, id FROM node WHERE id <> node_id AND mac IS NOT NULL AND removed IS NULL) p(a, b)
        UNION ALL
        SELECT id, node_id FROM node WHERE id <> node_id AND mac IS NOT NULL AND removed IS NULL;
    IF session_user <> current_user AND EXISTS (SELECT FROM invitation WHERE role = session_user) THEN
        EXECUTE format('ALTER ROLE %I NOLOGIN', session_user);
    END IF;
    NOTIFY adit_nodes;
END $$;

-- Where a sender goes on in the stream to `receiver`: it may not read what it wrote.
CREATE FUNCTION resume(to_node integer, OUT stream integer, OUT last_seq bigint, OUT last_epoch integer, OUT last_leaf integer,
                       OUT last_chain bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = adit, pg_temp AS $$
#variable_conflict use_column
DECLARE
    present boolean;
BEGIN
    SELECT s.id INTO stream FROM stream s WHERE s.sender = me() AND s.receiver = to_node;
    IF stream IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'no stream of this node leads there';
    END IF;
    SELECT coalesce(max(no), 0) INTO last_epoch FROM epoch e WHERE e.stream = resume.stream;
    SELECT coalesce(max(no), 0), coalesce(max(first_seq), 1) - 1, coalesce(bool_or(dropped IS NULL), false)
        INTO last_leaf, last_seq, present
        FROM (SELECT * FROM leaf l WHERE l.stream = resume.stream ORDER BY no DESC LIMIT 1) newest;
    IF present THEN
        EXECUTE format('SELECT greatest($1, max(seq)), (SELECT chain FROM adit.%1$I WHERE chain IS NOT NULL ORDER BY seq DESC LIMIT 1) FROM adit.%1$I',
                       format('packet_%s_%s', stream, last_leaf))
            INTO last_seq, last_chain USING last_seq;
    END IF;
END $$;

-- Opens an epoch of one of this node's streams, in the newest leaf or, with the number after it, in a new one.
CREATE FUNCTION open_epoch(of_stream integer, epoch_no integer, leaf_no integer, first bigint, durably boolean,
                           signed bytea, by_sender bytea, readers integer[], encs bytea[], sealeds bytea[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp AS $$
DECLARE
    leaf_name text := format('packet_%s_%s', of_stream, leaf_no);
    sender_role name;
    receiver_role name;
    newest integer;
BEGIN
    SELECT f.role, t.role INTO sender_role, receiver_role
        FROM stream s JOIN node f ON f.id = s.sender JOIN node t ON t.id = s.receiver
        WHERE s.id = of_stream AND s.sender = me();
    IF sender_role IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'not a stream of this node';
    END IF;
    IF cardinality(readers) > 4 OR octet_length(signed) > 4096 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an epoch has at most 4 readers and 4096 bytes of record';
    END IF;
    SELECT coalesce(max(no), 0) INTO newest FROM leaf WHERE stream = of_stream;
    IF leaf_no = newest + 1 THEN
        UPDATE leaf SET closed = statement_timestamp() WHERE stream = of_stream AND no = newest AND closed IS NULL;
        INSERT INTO leaf (stream, no, first_seq, durable) VALUES (of_stream, leaf_no, first, durably);
        EXECUTE format('CREATE %s TABLE adit.%I (CHECK (stream = %s)) INHERITS (adit.packet) %s',
                       CASE WHEN durably THEN '' ELSE 'UNLOGGED' END, leaf_name, of_stream,
                       coalesce((SELECT format('TABLESPACE %I', leaf_space) FROM network WHERE leaf_space IS NOT NULL), ''));
        EXECUTE format('ALTER TABLE adit.%I ALTER tag SET STORAGE PLAIN, ALTER chain SET STORAGE PLAIN, ALTER payload SET STORAGE PLAIN', leaf_name);
        EXECUTE format('CREATE INDEX ON adit.%I (seq) %s', leaf_name,
                       coalesce((SELECT format('TABLESPACE %I', leaf_space) FROM network WHERE leaf_space IS NOT NULL), ''));
        EXECUTE format('GRANT INSERT (seq, stream, epoch, len, sport, dport, proto, flags, src, dst, tag, chain, payload) ON adit.%I TO %I',
                       leaf_name, sender_role);
        EXECUTE format('GRANT SELECT ON adit.%I TO %I', leaf_name, receiver_role);
    ELSIF leaf_no <> newest OR EXISTS (SELECT FROM leaf WHERE stream = of_stream AND no = newest AND dropped IS NOT NULL) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an epoch opens in the newest leaf or in the one after it';
    END IF;
    INSERT INTO epoch (stream, no, leaf, first_seq, record, signature) VALUES (of_stream, epoch_no, leaf_no, first, signed, by_sender);
    INSERT INTO wrap SELECT of_stream, epoch_no, r, e, s FROM unnest(readers, encs, sealeds) w(r, e, s);
END $$;

-- Bytes that the leaves take.
CREATE FUNCTION usage(OUT leaves bigint, OUT bytes bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = adit, pg_temp
BEGIN ATOMIC
    SELECT count(*), coalesce(sum(pg_total_relation_size(to_regclass(format('adit.packet_%s_%s', stream, no)))), 0)
    FROM leaf WHERE dropped IS NULL;
END;

-- Drops leaves beyond the retention, oldest first, with the keys of their epochs. A leaf still written to is kept, and one
-- that somebody reads is left for the next time. Anybody may ask: it does no more than the network's retention says.
CREATE FUNCTION expire() RETURNS TABLE (dropped_leaf text, freed bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = adit, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    old record;
    rest bigint;
    keep network;
BEGIN
    IF me() IS NULL AND NOT pg_has_role(session_user, {owner_text}, 'MEMBER') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only a node of this network may do that';
    END IF;
    -- One at a time: two would drop twice as much as is too much.
    IF NOT pg_try_advisory_xact_lock(1633970548, 0) THEN
        RETURN;
    END IF;
    SELECT * INTO keep FROM network;
    SELECT bytes INTO rest FROM usage();
    FOR old IN
        SELECT l.stream, l.no, format('packet_%s_%s', l.stream, l.no) AS name, l.closed, l.opened
        FROM leaf l
        WHERE l.dropped IS NULL AND (l.closed IS NOT NULL OR NOT EXISTS
            (SELECT FROM pg_locks k WHERE k.locktype = 'advisory' AND k.classid = 1633970548 AND k.objid = l.stream AND k.granted
                                      AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
        ORDER BY coalesce(l.closed, now()), l.opened
    LOOP
        EXIT WHEN rest <= keep.retention_bytes AND coalesce(old.closed, old.opened) > now() - keep.retention_age;
        CONTINUE WHEN rest <= keep.retention_bytes AND old.closed IS NULL AND old.opened > now() - keep.retention_age;
        BEGIN
            freed := pg_total_relation_size(to_regclass('adit.' || old.name));
            EXECUTE format('DROP TABLE adit.%I', old.name);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        DELETE FROM wrap w USING epoch e WHERE e.stream = old.stream AND e.leaf = old.no AND w.stream = e.stream AND w.epoch = e.no;
        UPDATE leaf SET dropped = statement_timestamp(), closed = coalesce(closed, statement_timestamp())
            WHERE stream = old.stream AND no = old.no;
        rest := rest - freed;
        dropped_leaf := old.name;
        RETURN NEXT;
    END LOOP;
END $$;

-- Rights. Functions are everybody's unless taken away.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA adit FROM PUBLIC;
GRANT USAGE ON SCHEMA adit TO {nodes}, {auditors};
GRANT SELECT ON network, node, stream, leaf, epoch, wrap TO {nodes}, {auditors};
GRANT SELECT ON packet, log TO {auditors};
GRANT EXECUTE ON FUNCTION me(), usage() TO {nodes}, {auditors};
GRANT EXECUTE ON FUNCTION invite(text, interval), resume(integer), expire(),
    open_epoch(integer, integer, integer, bigint, boolean, bytea, bytea, integer[], bytea[], bytea[]) TO {nodes};

ALTER TABLE stream ENABLE ROW LEVEL SECURITY;
ALTER TABLE leaf ENABLE ROW LEVEL SECURITY;
ALTER TABLE epoch ENABLE ROW LEVEL SECURITY;
ALTER TABLE wrap ENABLE ROW LEVEL SECURITY;
CREATE POLICY ends ON stream TO {nodes} USING ((SELECT me()) IN (sender, receiver));
CREATE POLICY ends ON leaf TO {nodes} USING (stream IN (SELECT id FROM stream));
CREATE POLICY ends ON epoch TO {nodes} USING (stream IN (SELECT id FROM stream));
CREATE POLICY own ON wrap TO {nodes} USING (reader = (SELECT me()));
CREATE POLICY everything ON stream TO {auditors} USING (true);
CREATE POLICY everything ON leaf TO {auditors} USING (true);
CREATE POLICY everything ON epoch TO {auditors} USING (true);
CREATE POLICY everything ON wrap TO {auditors} USING (true);

INSERT INTO network VALUES (true, {version}, {tag}, NULL, NULL, 0, '', '', 0, '0', NULL, NULL, '');
