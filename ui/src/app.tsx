import type { FunctionComponent } from "preact";
import { useEffect } from "preact/hooks";
import { ErrorBoundary, lazy, LocationProvider, Route, Router } from "preact-iso";
import { connect, socket } from "./live/cluster";
import { Events } from "./pages/events/page";
import { GpuPage } from "./pages/gpus/page";
import { Pending } from "./pages/pending/page";
import { Workers } from "./pages/workers/list";
import { WorkerPage } from "./pages/workers/page";
import { Cluster } from "./pages/cluster/page";
import { Failure } from "./parts/panel";
import { Login } from "./session/login";
import { resume, session } from "./session/session";
import { useKeptFocus } from "./shell/focus";
import { Header } from "./shell/header";
import { Search } from "./shell/search";
import { Shortcuts } from "./shell/shortcuts";

/** The gate: without a session nothing of the cluster is drawn. */
export function App() {
  useEffect(() => void resume(), []);
  const state = session.value;
  if (state.state === "unknown") return null;
  if (state.state === "failed") {
    return (
      <main class="page">
        <h1>Gpuward</h1>
        <Failure error={state.error} again={() => void resume()} />
      </main>
    );
  }
  if (state.state === "out") return <Login />;
  return <Dashboard />;
}

function Dashboard() {
  useEffect(connect, []);
  useKeptFocus();
  const away = socket.value?.state.value.state === "away";
  return (
    <LocationProvider scope="/ui">
      <Header />
      <ErrorBoundary>
        <main id="content" class={away ? "page stale" : "page"} tabIndex={-1}>
          <Router>
            <Route path="/ui" component={Cluster} />
            <Route path="/ui/" component={Cluster} />
            {PAGES.map(([path, component]) => (
              <Route key={path} path={path} component={component} />
            ))}
            <Route default component={NotFound} />
          </Router>
        </main>
      </ErrorBoundary>
      <Search />
      <Shortcuts />
    </LocationProvider>
  );
}

const Deployments = lazy(() => import("./pages/deployments/list").then((page) => page.Deployments));
const DeploymentPage = lazy(() => import("./pages/deployments/page").then((page) => page.DeploymentPage));
const InstancePage = lazy(() => import("./pages/instances/page").then((page) => page.InstancePage));

/** A page reads the variables of its path by `useRoute().params`. */
const PAGES: readonly (readonly [path: string, page: FunctionComponent])[] = [
  ["/ui/deployments", Deployments],
  ["/ui/deployments/:name", DeploymentPage],
  ["/ui/instances/:id", InstancePage],
  ["/ui/hours", lazy(() => import("./pages/hours/page").then((page) => page.Hours))],
  ["/ui/hours/:name", lazy(() => import("./pages/hours/stretches").then((page) => page.Stretches))],
  ["/ui/policies", lazy(() => import("./pages/policies/page").then((page) => page.Policies))],
  ["/ui/policies/:name", lazy(() => import("./pages/policies/page").then((page) => page.PolicyPage))],
  ["/ui/access", lazy(() => import("./pages/access/page").then((page) => page.Access))],
  ["/ui/playground", lazy(() => import("./pages/playground/page").then((page) => page.Playground))],
  ["/ui/catalog", lazy(() => import("./pages/catalog/page").then((page) => page.Catalog))],
  ["/ui/pending", Pending],
  ["/ui/workers", Workers],
  ["/ui/workers/:name", WorkerPage],
  ["/ui/gpus/:uuid", GpuPage],
  ["/ui/events", Events],
  ["/ui/apply", lazy(() => import("./pages/apply/page").then((page) => page.Apply))],
];

function NotFound() {
  useEffect(() => {
    document.title = "Not found · Gpuward";
  }, []);
  return (
    <>
      <h1>Not found</h1>
      <p>
        No page has this address. <a href="/ui/">Go to the cluster</a>
      </p>
    </>
  );
}
