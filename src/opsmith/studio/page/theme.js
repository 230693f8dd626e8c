// Before the first paint: the theme chosen earlier, else the system's. Also marks a wrong password on the login page.
{
  const chosen = localStorage.getItem("opsmith-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  if (location.search === "?wrong") document.documentElement.dataset.wrong = "1";
}
