"use strict";
// Everything that comes from the store is put on the page as text, never as markup.
(() => {
  const find = (id) => document.getElementById(id);
  const make = (name, text, parent) => {
    const element = document.createElement(name);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const number = (text) => Number(text).toLocaleString("en");

  // ---- figures: names of /metrics, and what people call them
  const FIGURES = [
    ["ernic_store_objects", "objects"],
    ["ernic_store_bytes", "bytes stored"],
    ["ernic_store_capacity_bytes", "bytes of room"],
    ["ernic_store_uploads", "uploads in progress"],
    ["ernic_http_connections_open", "connections"],
    ["ernic_http_requests_total", "requests"],
    ['ernic_http_body_bytes_total{direction="in"}', "HTTP bytes in"],
    ['ernic_http_body_bytes_total{direction="out"}', "HTTP bytes out"],
    ["minio_api_rdma_read_ops_total", "RDMA GETs"],
    ['ernic_rdma_bytes_total{operation="read"}', "RDMA bytes out"],
    ["minio_api_rdma_write_ops_total", "RDMA PUTs"],
    ['ernic_rdma_bytes_total{operation="write"}', "RDMA bytes in"],
  ];
  const shown = FIGURES.map(([name, label]) => {
    const box = make("div", "", find("figures"));
    make("dt", label, box);
    const value = make("dd", "–", box);
    value.dataset.name = name;
    return value;
  });
  const measure = async () => {
    try {
      const answer = await fetch("/metrics", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const samples = new Map();
      for (const line of (await answer.text()).split("\n")) {
        const at = line.lastIndexOf(" ");
        if (at > 0 && !line.startsWith("#")) samples.set(line.slice(0, at), line.slice(at + 1));
      }
      for (const value of shown) value.textContent = number(samples.get(value.dataset.name) ?? 0);
      find("figures-note").textContent = "";
    } catch (error) {
      find("figures-note").textContent = `No news: ${error.message}.`;
    }
    setTimeout(measure, 2000);
  };
  measure();

  // ---- objects
  if (document.body.dataset.auth === "on") {
    find("path").hidden = true;
    find("note").textContent = "Browsing needs authentication to be off: this page has no keys to sign requests with.";
    return;
  }
  const place = () => {
    const [bucket, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
    return [bucket, rest.join("/")];
  };
  const hash = (bucket, prefix) => "#" + [bucket, ...(prefix === "" ? [] : prefix.split("/"))].map(encodeURIComponent).join("/");
  const texts = (parent, name) => [...parent.children].filter((child) => child.tagName === name).map((child) => child.textContent);
  const ask = async (target) => {
    const answer = await fetch(target, { cache: "no-store", headers: { accept: "application/xml" } });
    const tree = new DOMParser().parseFromString(await answer.text(), "application/xml").documentElement;
    if (!answer.ok) throw new Error(texts(tree, "Message")[0] ?? `the server answers ${answer.status}`);
    return tree;
  };
  const row = (name, href, size, modified) => {
    const tr = make("tr", "", find("rows"));
    const cell = make("td", "", tr);
    const link = make(href === null ? "span" : "a", name, cell);
    if (href !== null) link.href = href;
    make("td", size, tr).className = "number";
    make("td", modified, tr);
    return link;
  };
  // A browser would take these for steps up.
  const reachable = (key) => !key.split("/").some((step) => step === "." || step === "..");

  let visit = 0;
  const buckets = async (mine) => {
    const tree = await ask("/?x-id=ListBuckets");
    if (mine !== visit) return;
    for (const bucket of tree.querySelectorAll("Bucket")) {
      row(texts(bucket, "Name")[0], hash(texts(bucket, "Name")[0], ""), "", texts(bucket, "CreationDate")[0]);
    }
  };
  const objects = async (mine, bucket, prefix, token) => {
    const query = new URLSearchParams({ "list-type": 2, delimiter: "/", "encoding-type": "url", prefix });
    if (token) query.set("continuation-token", token);
    const tree = await ask(`/${encodeURIComponent(bucket)}?${query}`);
    if (mine !== visit) return;
    const plain = (text) => decodeURIComponent(text.replaceAll("+", " "));
    for (const group of tree.querySelectorAll("CommonPrefixes")) {
      const name = plain(texts(group, "Prefix")[0]);
      row(name.slice(prefix.length), hash(bucket, name), "", "");
    }
    for (const object of tree.querySelectorAll("Contents")) {
      const key = plain(texts(object, "Key")[0]);
      const href = `/${[bucket, ...key.split("/")].map(encodeURIComponent).join("/")}`;
      const link = row(key.slice(prefix.length), reachable(key) ? href : null, number(texts(object, "Size")[0]), texts(object, "LastModified")[0]);
      if (link.href) link.download = key.split("/").pop();
    }
    const next = texts(tree, "NextContinuationToken")[0];
    find("more").hidden = !next;
    find("more").onclick = () => load(() => objects(mine, bucket, prefix, next));
  };
  const load = async (work) => {
    try {
      await work();
      find("note").textContent = find("rows").children.length === 0 ? "Nothing here." : "";
    } catch (error) {
      find("note").textContent = `Cannot list: ${error.message}`;
    }
    find("list").hidden = find("rows").children.length === 0;
    document.body.dataset.ready = visit;
  };
  const show = () => {
    const mine = ++visit;
    const [bucket, prefix] = place();
    find("rows").replaceChildren();
    find("path").replaceChildren();
    find("more").hidden = true;
    make("a", "buckets", find("path")).href = "#";
    let walked = "";
    for (const [i, step] of bucket === "" ? [] : [bucket, ...prefix.split("/").slice(0, -1)].entries()) {
      make("span", "/", find("path"));
      if (i > 0) walked += `${step}/`;
      make("a", step, find("path")).href = hash(bucket, walked);
    }
    load(() => (bucket === "" ? buckets(mine) : objects(mine, bucket, prefix, null)));
  };
  addEventListener("hashchange", show);
  show();
})();
