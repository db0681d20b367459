-- Memory of owners: sealed records, keyed search rows, jobs and nonces. Everything is in a schema of its
-- own. The type of sparse vectors comes from pgvector, whose extension was made before this runs.

-- An owner by pseudonym, with the version that each commit raises.
create table baton.owner (
    owner bytea primary key,
    version bigint not null
);

-- Sealed records. Numbers are unsigned 64-bit ones less 2^63, so that they sort as they are.
create table baton.record (
    owner bytea not null,
    space smallint not null,
    number bigint not null,
    bytes bytea not null,
    primary key (owner, space, number)
);
-- What is sealed does not compress.
alter table baton.record alter column bytes set storage external;

-- One row for each searchable item: number of terms, keyed terms, signs of the rotated embedding. Key and embedder name
-- what the other columns are made with. A row goes with its record.
create table baton.item (
    owner bytea not null,
    number bigint not null,
    key bigint not null,
    length integer not null,
    terms sparsevec not null,
    embedder bigint,
    signs bit varying,
    primary key (owner, number)
);

-- Jobs by the time they are due.
create table baton.job (
    owner bytea not null,
    job bigint not null,
    due_ms bigint not null,
    primary key (owner, job)
);
create index job_due on baton.job (due_ms);

-- Nonces of requests until they run out.
create table baton.nonce (
    nonce bytea primary key,
    until_ms bigint not null
);
create index nonce_until on baton.nonce (until_ms);

-- The owner that a transaction works for; nothing without one.
create function baton.current_owner() returns bytea
    language sql stable parallel safe
    as $$ select decode(current_setting('app.owner', true), 'hex') $$;

-- Whether a transaction looks for owners and jobs of everybody. It sees pseudonyms, versions and times.
create function baton.runs_jobs() returns boolean
    language sql stable parallel safe
    as $$ select coalesce(current_setting('app.runner', true), '') = 'on' $$;

alter table baton.owner enable row level security;
alter table baton.owner force row level security;
alter table baton.record enable row level security;
alter table baton.record force row level security;
alter table baton.item enable row level security;
alter table baton.item force row level security;
alter table baton.job enable row level security;
alter table baton.job force row level security;

create policy owner_own on baton.owner
    using (owner = baton.current_owner()) with check (owner = baton.current_owner());
create policy owner_list on baton.owner for select using (baton.runs_jobs());
create policy record_own on baton.record
    using (owner = baton.current_owner()) with check (owner = baton.current_owner());
create policy item_own on baton.item
    using (owner = baton.current_owner()) with check (owner = baton.current_owner());
create policy job_own on baton.job
    using (owner = baton.current_owner()) with check (owner = baton.current_owner());
create policy job_take on baton.job for select using (baton.runs_jobs());
create policy job_defer on baton.job for update using (baton.runs_jobs()) with check (baton.runs_jobs());
