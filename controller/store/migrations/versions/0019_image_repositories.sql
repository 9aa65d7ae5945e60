-- A digest is of one repository: a revision keeps one for each, and `image_digest` is the one that it kept last.
-- The repository of a digest that is kept already is not known. It has the name '', and counts only for revisions whose
-- spec names the image: there it cannot be another one.

alter table revisions
    add column image_digests jsonb not null default '{}'  -- (hub) {repository: digest}
--;;
update revisions set image_digests = jsonb_build_object('', image_digest) where image_digest is not null
