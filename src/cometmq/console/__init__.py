"""A web application that shows a cluster, and the same as JSON; it needs the extra ``console``.

It uses `AdminClient` only, so it works on clusters of RocketMQ as well. A feature is one folder:
its `Page` objects, what they read, and their templates.

    Page(path, title, template, query, result, load, role)

`load` takes `Reads` and the query, and returns a struct. From one page `app` makes two routes: the
path gives HTML by the template, and ``/api`` before it gives the struct as JSON. The OpenAPI schema
is made of the structs as well, so page, API and schema cannot differ.

    Change(path, title, form, apply, result, role, preview)

What changes the cluster is a `Change`: its form is a struct too, `preview` returns what it would do
and `apply` does it, and `changes` makes of it the page with the form, the JSON, and the lines of
the audit log. It needs no template. A new feature is a new folder and a line in `app`.

    server                       the socket
     │
    app                          the routes of all features
     │
    guard                        looks at each request first: site, session, headers
     │
    overview · topics · static_topics · groups · messages · dead_letters · timers · transactions
    cluster · settings · accounts · doctor      the features
     │
    openapi
     │
    downloads                    `Download`: files that are made while they are sent
     │
    changes · forms              `Change`: from a form to a preview and a result
    live · charts                `Live`: parts of pages as server-sent events; lines over time
     │
    access                       users, sessions, sign-in by password or provider, the audit log
     │
    config                       the table of a TOML file: provider, accounts of roles
     │
    stored_messages              messages in lists, ranges of queue offsets in addresses
     │
    pages                        `Page`: from a request to a struct, from a struct to HTML or JSON
     │
    reads                        requests to the cluster: how many at a time, and for how long kept

Rules:

* Everything is bounded: rows of a page, requests in flight, seconds of a page, viewers of live
  figures, sessions, sign-ins a minute. No page asks each broker for everything that it has.
* Jinja2 escapes each value, and no template turns that off. A body is shown as text. The content
  security policy allows no inline script and no other host.
* A page changes nothing: a change is a POST with the token of the session, and is logged before it
  is made.
"""
