import { render } from "preact";
import { App } from "./app";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/map.css";
import "./styles/cluster.css";
import "./styles/events.css";
import "./styles/deployments.css";
import "./styles/log.css";
import "./styles/graph.css";
import "./styles/apply.css";
import "./styles/pages.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
