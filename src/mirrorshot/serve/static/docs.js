/** The page that shows openapi.json. */

import { byId, h } from "./dom.js";

const document_ = await (await fetch("openapi.json")).json();
const schemas = document_.components.schemas;
const named = (schema) => (schema?.$ref ? schema.$ref.split("/").at(-1) : null);

function kind(schema) {
  if (!schema || Object.keys(schema).length === 0) return "anything";
  if (named(schema)) return named(schema);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  if (schema.format === "binary") return "bytes";
  const bounds = [["minimum", "at least"], ["maximum", "at most"], ["maxLength", "length at most"]];
  const said = bounds.filter(([name]) => name in schema).map(([name, words]) => `${words} ${schema[name]}`).join(", ");
  return said ? `${schema.type}, ${said}` : schema.type;
}

/** An example of a schema, as far as its types tell. */
function example(schema, depth = 0) {
  if (depth > 9) return null;
  if (named(schema)) return example(schemas[named(schema)], depth + 1);
  if (schema.anyOf) return example(schema.anyOf[0], depth + 1);
  if (schema.enum) return schema.enum[0];
  if (schema.type === "array") return [example(schema.items, depth + 1)];
  if (schema.type === "object")
    return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, part]) => [name, example(part, depth + 1)]));
  return { string: "…", integer: 1, number: 0.9, boolean: true }[schema.type] ?? null;
}

/** Text with its `code`. */
const marked = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

const block = (title, ...content) => [h("h3", {}, title), ...content];
const code = (value) => h("pre", {}, JSON.stringify(value, null, 2));

function table(head, rows) {
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

function operation(path, method, found) {
  const parts = [];
  if (found.parameters?.length)
    parts.push(...block("Parameters", table(["name", "in", "what", "needed"], found.parameters.map((given) =>
      [h("code", {}, given.name), given.in, kind(given.schema), given.required ? "yes" : "no"]))));
  for (const [media, { schema }] of Object.entries(found.requestBody?.content ?? {}))
    parts.push(...block(`Body: ${media}`, named(schema) ? code(example(schema)) : h("p", {}, kind(schema))));
  for (const [status, answer] of Object.entries(found.responses).filter(([status]) => status < "300"))
    for (const [media, { schema }] of Object.entries(answer.content ?? {}))
      parts.push(...block(`Answer ${status}: ${media}`, media === "application/json" ? code(example(schema)) : h("p", {}, "bytes")));
  const problems = Object.entries(found.responses).filter(([status]) => status >= "400");
  if (problems.length) parts.push(...block("Problems", table(["status", "why"], problems.map(([status, { description }]) => [status, marked(description)]))));
  return h("details", {}, h("summary", {}, h("span", { class: "method" }, method.toUpperCase()), h("code", {}, path),
    h("span", { class: "what" }, marked(found.description ?? found.summary))), h("div", { class: "inner" }, parts));
}

const groups = new Map();
for (const [path, methods] of Object.entries(document_.paths))
  for (const [method, found] of Object.entries(methods)) {
    const tag = found.tags?.[0] ?? "other";
    groups.set(tag, [...(groups.get(tag) ?? []), operation(path, method, found)]);
  }
byId("api").append(h("p", { class: "lead" }, marked(document_.info.description.replaceAll(/([^\n])\n(?!\n)/g, "$1 "))),
  ...[...groups].map(([tag, operations]) => h("section", {}, h("h2", {}, tag), operations)));
